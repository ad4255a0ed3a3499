"""A request, its choices, and the events it sends back. One number per choice says how far it is: `num_computed`."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from weir.engine.errors import RequestError


class FinishReason(StrEnum):
    """Why a choice ended. STOP: end-of-sequence, stop token or stop string. LENGTH: max_tokens or model length."""

    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are chosen; validated by `weir.engine.validation` before a request is queued.

    Order of operations: logit_bias, penalties and min_tokens on the logits; temperature; top_k; top_p; min_p.
    temperature 0 is greedy (highest logit, lowest id on a tie). top_k 0 and top_p 1 switch a filter off.
    """

    max_tokens: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int | None = None
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    include_stop: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One request as it is handed to the engine. Times are seconds of time.monotonic(), the same in every process."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    n: int = 1
    priority: int = 5
    arrival: float = 0.0
    deadline: float | None = None
    tenant: str = ""
    cache_salt: str = ""

    @property
    def most_tokens(self) -> int:
        """Prompt tokens, and output tokens of all choices at max_tokens: what the queue counts."""
        return len(self.prompt_token_ids) + self.n * self.params.max_tokens


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """log-softmax of the model's own logits (before any processor) for one token, and the best alternatives."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of a request; completion_tokens sums over the choices."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds: in the queue, from admission to the last prompt token, arrival to first token, arrival to end."""

    queue_s: float
    prefill_s: float
    first_token_s: float
    total_s: float


@dataclass(frozen=True, slots=True)
class ChoiceFinish:
    """How a choice ended; `stop` is the string or token id that ended it, None for end-of-sequence and LENGTH."""

    reason: FinishReason
    stop: str | int | None = None


@dataclass(frozen=True, slots=True)
class Admitted:
    """The request holds its KV reservation and its prefill begins. `cached_tokens` were found in the prefix cache."""

    request_id: str
    prompt_tokens: int
    cached_tokens: int
    queue_s: float
    max_tokens: int


class Delta(NamedTuple):
    """New tokens and text of one choice; `finish` rides with the last one, so no text can come after it.

    `text` may lag `token_ids` while a character or a possible stop string is incomplete; the concatenation of all
    texts is the whole text. `prompt_logprobs` rides with the first delta of choice 0 (None for the first token).
    """

    request_id: str
    choice: int
    token_ids: tuple[int, ...]
    text: str
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
    finish: ChoiceFinish | None = None


@dataclass(frozen=True, slots=True)
class Preempted:
    """The request gave its blocks back and will be recomputed; its stream goes on later."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Done:
    """Terminal: every choice finished."""

    request_id: str
    usage: Usage
    timings: Timings


@dataclass(frozen=True, slots=True)
class Failed:
    """Terminal: the request ended without finishing, and why."""

    request_id: str
    error: RequestError


Event = Admitted | Delta | Preempted | Done | Failed


@dataclass(slots=True, eq=False)
class Choice:
    """One sequence of a request: `tokens` (prompt + output) of which the first `num_computed` are in the KV cache.

    A step computes the next min(pending, budget left) tokens; prefill, decode, chunks, prefix hits, forks and
    resumption are all this rule.

    in_flight: tokens that a launched step will sample but that are not collected yet (at most 1).
    parked: waits for the prompt blocks that its request's leading choice is computing.
    """

    request: Request
    index: int
    tokens: list[int]
    num_computed: int = 0
    in_flight: int = 0
    parked: bool = False
    blocks: list[int] = field(default_factory=list)
    hashes: list[bytes] = field(default_factory=list)
    finish: ChoiceFinish | None = None
    # Opaque to scheduling: the text stream and the sampler's per-row state.
    text: Any = None
    sampling: Any = None

    @property
    def is_live(self) -> bool:
        """Whether it goes on: it has not finished, and its request has not ended."""
        return self.finish is None and not self.request.closed

    @property
    def num_output(self) -> int:
        """Tokens sampled so far, those in flight included."""
        return len(self.tokens) + self.in_flight - len(self.request.spec.prompt_token_ids)

    @property
    def num_sampled(self) -> int:
        """Tokens sampled and collected."""
        return len(self.tokens) - len(self.request.spec.prompt_token_ids)

    @property
    def pending(self) -> int:
        """Tokens not yet in the KV cache; 1 for a decode."""
        return len(self.tokens) + self.in_flight - self.num_computed

    @property
    def remaining(self) -> int:
        """Tokens it may still sample; 0 when it has finished."""
        return 0 if self.finish else self.request.spec.params.max_tokens - self.num_output


@dataclass(slots=True, eq=False)
class Request:
    """A submitted request and the mutable state of its choices; owned by the Scheduler."""

    spec: GenerateRequest
    choices: list[Choice] = field(default_factory=list)
    admitted_at: float | None = None
    first_token_at: float | None = None
    cached_tokens: int = 0
    # Output tokens when it was last preempted: it is not preempted again before it has more.
    preempted_at_output: int = -1
    closed: bool = False  # its terminal event is out; late tokens of a launched step are dropped

    @property
    def request_id(self) -> str:
        """The id the client or the server gave it, unique among live requests."""
        return self.spec.request_id

    @property
    def live(self) -> list[Choice]:
        """Choices that have not finished."""
        return [choice for choice in self.choices if choice.finish is None]

    @property
    def num_output(self) -> int:
        """Tokens sampled so far over all choices."""
        return sum(choice.num_output for choice in self.choices)
