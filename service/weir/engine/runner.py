"""Runs planned steps on the model: launch() starts one, collect() hands over its tokens."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from weir_kernels.ragged import RaggedBatch

from weir.engine.batch import Batch, build_batch
from weir.engine.plan import StepPlan
from weir.engine.request import Choice, TokenLogprobs
from weir.engine.sampler import Sampler, SampleRow


class ModelExecutor(Protocol):
    """What a decoder does for the runner; `weir.models.decoder.Decoder` is one. The cache is the decoder's own type."""

    def forward(self, batch: RaggedBatch, kv: Any) -> torch.Tensor:
        """Logits [R, V] float32 of `batch.logit_rows`; K and V of every token are written first."""
        ...


class LaunchedStep(Protocol):
    """A step on its way, as its runner knows it. build_s: seconds that laying it out took."""

    @property
    def build_s(self) -> float: ...


class StepRunner(Protocol):
    """Runs steps on a device, one after the other in the order of their launch.

    steps_ahead: how many steps may be on their way when the next one is launched, 0 or 1.
    """

    @property
    def steps_ahead(self) -> int: ...

    def follows(self, plan: StepPlan) -> bool:
        """Whether this step may be launched before the last launched one is collected."""
        ...

    def launch(self, plan: StepPlan) -> LaunchedStep:
        """Start the step, which has at least one chunk."""
        ...

    def collect(self, launched: Any) -> StepTokens:
        """Wait for the oldest launched step that was not collected yet, and take its tokens."""
        ...


@dataclass(frozen=True, slots=True)
class Launched:
    """A step on its way: what it computes, and its logits (or, all rows being greedy, its token ids)."""

    batch: Batch | None
    logits: torch.Tensor | None
    token_ids: torch.Tensor | None
    build_s: float


@dataclass(frozen=True, slots=True)
class PromptScores:
    """Log-probabilities of a choice's prompt tokens from `first_token` on."""

    choice: Choice
    first_token: int
    logprobs: list[TokenLogprobs]


@dataclass(frozen=True, slots=True)
class StepTokens:
    """What a step sampled: one token a choice in `choices`, with its log-probabilities where asked for."""

    choices: tuple[Choice, ...]
    token_ids: list[int]
    logprobs: list[TokenLogprobs | None]
    prompt_scores: list[PromptScores]


_NOTHING = StepTokens((), [], [], [])


class Runner:
    """Owns the KV cache tensors; on a CPU a launched step is complete when launch() returns."""

    steps_ahead = 0

    def __init__(
        self, decoder: ModelExecutor, kv: Any, sampler: Sampler, block_size: int, device: torch.device
    ) -> None:
        self._decoder = decoder
        self._greedy = getattr(decoder, "greedy", None)
        self._kv = kv
        self._sampler = sampler
        self._block_size = block_size
        self._device = device

    def follows(self, plan: StepPlan) -> bool:
        """Never: a step needs the tokens of the one before it on the host."""
        return False

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> Launched:
        """Compute the step. An empty plan computes nothing."""
        if not plan.chunks:
            return Launched(None, None, None, 0.0)
        began = time.perf_counter()
        batch = build_batch(plan, self._block_size, self._device)
        built = time.perf_counter()
        logits = token_ids = None
        if self._greedy is not None and batch.sampled and not batch.scored and _only_arg_max(batch.sampled):
            token_ids = self._greedy(batch.ragged, self._kv)
        else:
            logits = self._decoder.forward(batch.ragged, self._kv)
        return Launched(batch, logits, token_ids, built - began)

    @torch.inference_mode()
    def collect(self, launched: Launched) -> StepTokens:
        """Sample. The only place where the host waits for the device."""
        batch, logits = launched.batch, launched.logits
        if batch is None:
            return _NOTHING
        if launched.token_ids is not None:
            return StepTokens(batch.sampled, launched.token_ids.tolist(), [None] * len(batch.sampled), [])
        assert logits is not None
        scores = []
        for rows in batch.scored:
            prompt = rows.choice.request.spec.prompt_token_ids
            top_k = rows.choice.request.spec.params.prompt_logprobs or 0
            part = logits[rows.first_row : rows.first_row + rows.count].clone()
            tokens = prompt[rows.first_token : rows.first_token + rows.count]
            scores.append(
                PromptScores(rows.choice, rows.first_token, self._sampler.prompt_logprobs(part, tokens, top_k))
            )
        if not batch.sampled:
            return StepTokens((), [], [], scores)
        if len(batch.sample_rows) != len(logits):
            logits = logits[list(batch.sample_rows)]
        sampled = self._sampler(logits, [SampleRow(c.sampling, len(c.tokens)) for c in batch.sampled])
        return StepTokens(batch.sampled, sampled.token_ids, sampled.logprobs, scores)


def _only_arg_max(choices: tuple[Choice, ...]) -> bool:
    return all(
        c.sampling.greedy and not c.sampling.processed and c.request.spec.params.logprobs is None for c in choices
    )
