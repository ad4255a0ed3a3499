"""What the client returns: plain frozen values, one for each message of the API."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of a request; completion_tokens sums over the choices."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int

    @property
    def total_tokens(self) -> int:
        """Prompt and completion."""
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds: in the queue, from admission to the last prompt token, arrival to first token, arrival to end."""

    queue_s: float
    prefill_s: float
    first_token_s: float
    total_s: float


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Natural log-probability of a token, and (token id, log-probability) of the best alternatives.

    `logprob` is None for the first prompt token, which nothing precedes.
    """

    token_id: int
    logprob: float | None
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Delta:
    """New tokens and text of one choice. `finish_reason` is set in the last delta of the choice.

    `stop` is then the stop string or stop token id that ended it; None for end-of-sequence and for length.
    """

    choice: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    finish_reason: FinishReason | None
    stop: str | int | None


@dataclass(frozen=True, slots=True)
class Choice:
    """One generated choice, complete."""

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    finish_reason: FinishReason
    stop: str | int | None


@dataclass(frozen=True, slots=True)
class Completion:
    """The whole answer. `text`, `token_ids`, `logprobs`, `finish_reason` and `stop` are those of the first choice."""

    request_id: str
    choices: tuple[Choice, ...]
    prompt_logprobs: tuple[TokenLogprob, ...]
    usage: Usage
    timings: Timings
    max_tokens: int

    @property
    def text(self) -> str:
        """The generated text."""
        return self.choices[0].text

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The generated tokens."""
        return self.choices[0].token_ids

    @property
    def logprobs(self) -> tuple[TokenLogprob, ...]:
        """One for each generated token, when asked for."""
        return self.choices[0].logprobs

    @property
    def finish_reason(self) -> FinishReason:
        """Why it ended."""
        return self.choices[0].finish_reason

    @property
    def stop(self) -> str | int | None:
        """The stop string or stop token id that ended it."""
        return self.choices[0].stop


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """The served model and the limits of the server."""

    name: str
    architecture: str
    dtype: str
    device: str
    kernels: str
    vocab_size: int
    max_model_len: int
    block_size: int
    kv_total_tokens: int
    kv_bytes_per_token: int
    max_batch_tokens: int
    max_running: int
    default_max_tokens: int
    eos_token_ids: tuple[int, ...]
    server_version: str


@dataclass(frozen=True, slots=True)
class Budget:
    """The KV pool (in tokens) and the queue at one moment. free + used + cached = total."""

    kv_total_tokens: int
    kv_free_tokens: int
    kv_used_tokens: int
    kv_cached_tokens: int
    kv_reserved_peak_tokens: int
    running_requests: int
    queued_requests: int
    queued_tokens: int
    estimated_wait_s: float
    step: int
    computed_tokens: int = 0
    prefix_hit_tokens: int = 0
