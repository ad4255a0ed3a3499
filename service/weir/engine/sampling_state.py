"""What the sampler must know of one choice, kept up to date token by token."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from weir.engine.random_numbers import choice_seed, stream_key, uniform
from weir.engine.request import SamplingParams
from weir.engine.stop import stop_token_ids

# Below this the softmax of float32 logits is one-hot but for near ties, and a division by it may overflow.
GREEDY_BELOW = 1e-5


class SeenTokens:
    """The distinct tokens of a choice, each with its count in the output. Adding one is O(1); nothing is recounted."""

    __slots__ = ("_counts", "_ids", "_slot_of")

    def __init__(self, prompt_token_ids: Sequence[int]) -> None:
        distinct = dict.fromkeys(prompt_token_ids)
        self._slot_of = {token_id: slot for slot, token_id in enumerate(distinct)}
        self._ids = np.fromiter(distinct, dtype=np.int64, count=len(distinct))
        self._counts = np.zeros(len(distinct), dtype=np.float32)

    def add(self, token_id: int) -> None:
        """Count one output token."""
        slot = self._slot_of.setdefault(token_id, len(self._slot_of))
        if slot == len(self._ids):
            room = max(16, len(self._ids))
            self._ids = np.concatenate([self._ids, np.zeros(room, dtype=np.int64)])
            self._counts = np.concatenate([self._counts, np.zeros(room, dtype=np.float32)])
        self._ids[slot] = token_id
        self._counts[slot] += 1

    @property
    def ids(self) -> npt.NDArray[np.int64]:
        """Distinct token ids, in the order of first appearance."""
        return self._ids[: len(self._slot_of)]

    @property
    def counts(self) -> npt.NDArray[np.float32]:
        """How often each of `ids` is in the output; 0 for tokens of the prompt only."""
        return self._counts[: len(self._slot_of)]


class SamplingState:
    """The parameters of one choice, its random stream and its token counts.

    Created with the choice and kept until it ends, through preemption too: without a seed, the state draws one.
    `append` every sampled token. `choice` is the index among the request's n choices.
    """

    __slots__ = (
        "_always_processed",
        "_key",
        "bias_ids",
        "biases",
        "greedy",
        "num_output",
        "params",
        "seen",
        "stop_ids",
    )

    def __init__(
        self,
        params: SamplingParams,
        prompt_token_ids: Sequence[int],
        eos_token_ids: Sequence[int],
        vocab_size: int,
        choice: int = 0,
    ) -> None:
        seed = secrets.randbits(64) if params.seed is None else choice_seed(params.seed, choice)
        self._key = stream_key(seed)
        self.params = params
        self.greedy = params.temperature < GREEDY_BELOW
        self.num_output = 0
        stops = [token_id for token_id in stop_token_ids(params, eos_token_ids) if token_id < vocab_size]
        self.stop_ids = np.array(sorted(stops), dtype=np.int64)
        self.bias_ids = np.array([token_id for token_id, _ in params.logit_bias], dtype=np.int64)
        self.biases = np.array([bias for _, bias in params.logit_bias], dtype=np.float32)
        repeats = params.repetition_penalty != 1.0
        penalised = repeats or params.presence_penalty != 0.0 or params.frequency_penalty != 0.0
        # Only the repetition penalty looks at the prompt.
        self.seen = SeenTokens(prompt_token_ids if repeats else ()) if penalised else None
        self._always_processed = penalised or bool(params.logit_bias)

    def append(self, token_id: int) -> None:
        """Count the token that was sampled."""
        self.num_output += 1
        if self.seen is not None:
            self.seen.add(token_id)

    @property
    def stops_suppressed(self) -> bool:
        """Whether there are stop tokens that the next token may not be, because fewer than min_tokens are out."""
        return self.num_output < self.params.min_tokens and len(self.stop_ids) > 0

    @property
    def processed(self) -> bool:
        """Whether the logits of the next token are changed before it is chosen."""
        return self._always_processed or self.stops_suppressed

    def random(self, position: int) -> float:
        """The number in [0, 1) that chooses the token at index `position` of the sequence."""
        return uniform(self._key, position)
