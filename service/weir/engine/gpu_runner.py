"""Runs steps on a GPU: decode steps are replayed graphs, tokens are sampled and fed on the device, collect waits once.

A step whose rows need no more than their own logits (no penalties, no log-probabilities) never comes back to the host
before the next one starts: `launch` of the next step may be called first, and takes the sampled tokens on the device.
Any other step runs as `Runner` runs it, and must not be launched before the one before it is collected.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from weir_kernels.ragged import RaggedBatch

from weir.engine.gpu_batch import StepShape, ragged_batch, write_step
from weir.engine.gpu_graphs import Graphs, graph_sizes
from weir.engine.gpu_staging import Staging
from weir.engine.plan import StepPlan
from weir.engine.request import Choice
from weir.engine.runner import Launched, ModelExecutor, Runner, StepTokens

Draw = Callable[
    [torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor],
    torch.Tensor,
]


@dataclass(frozen=True, slots=True)
class GpuLaunched:
    """A step on its way. token_ids: pinned, valid once `ready`; slow: the step as the plain runner launched it."""

    choices: tuple[Choice, ...]
    token_ids: torch.Tensor | None
    ready: torch.cuda.Event | None
    slow: Launched | None
    build_s: float


class GpuRunner:
    """Owns staging, graphs and the tokens of the last step. draw: `weir_kernels.sampling.sample`."""

    steps_ahead = 1

    def __init__(
        self,
        decoder: ModelExecutor,
        kv: Any,
        plain: Runner,
        draw: Draw,
        graphs: Graphs,
        shape: StepShape,
        device: torch.device,
    ) -> None:
        self._decoder = decoder
        self._kv = kv
        self._plain = plain
        self._draw = draw
        self._graphs = graphs
        self._shape = shape
        self._staging = Staging(shape.fields(), device)
        self._tensors = self._staging.tensors
        self._device = device
        pinned = device.type == "cuda"
        self._results = [torch.zeros(shape.max_rows, dtype=torch.int64, pin_memory=pinned) for _ in range(2)]
        self._turn = 0
        self._last_rows: dict[int, int] = {}
        self._last_tokens: torch.Tensor | None = None

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Record every decode size and run one mixed step, so that no step of a request compiles anything."""
        rows = self._shape.max_rows
        self._tensors["seq_lens"].zero_()
        self._tensors["slot_mapping"].fill_(-1)
        self._tensors["cu_seqlens"].copy_(torch.arange(rows + 1))
        self._tensors["logit_rows"].copy_(torch.arange(rows))
        self._graphs.record(graph_sizes(min(rows, self._shape.max_tokens)), self._decode)
        tokens, decodes = min(self._shape.max_tokens, 32), min(rows - 1, 1)
        bounds = torch.tensor([*range(decodes + 1), tokens], dtype=torch.int32)
        self._tensors["cu_seqlens"][: len(bounds)].copy_(bounds)
        mixed = ragged_batch(self._tensors, tokens, decodes + 1, decodes, decodes + 1, self._shape)
        self._sample(self._decoder.forward(mixed, self._kv))

    def follows(self, plan: StepPlan) -> bool:
        """Whether this step may be launched before the tokens of the last launched one are collected."""
        return all(
            _is_plain(chunk.choice) and (chunk.start < len(chunk.choice.tokens) or id(chunk.choice) in self._last_rows)
            for chunk in plan.chunks
        )

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> GpuLaunched:
        """Queue the step on the device and return. An empty plan computes nothing."""
        began = time.perf_counter()
        if not plan.chunks or not self.follows(plan):
            slow = self._plain.launch(plan)
            self._last_rows, self._last_tokens = {}, None
            return GpuLaunched((), None, None, slow, slow.build_s)
        rows = len(plan.chunks)
        only_decodes = plan.num_single == rows and all(chunk.samples for chunk in plan.chunks)
        size = self._graphs.fitting(rows) if only_decodes else None
        arrays = self._staging.next()
        choices = write_step(plan, size or rows, self._shape, arrays, self._last_rows)
        if size is not None:
            arrays["logit_rows"][:size] = range(size)
        self._staging.upload(size or rows)
        self._feed(plan)
        built = time.perf_counter()
        if size is not None:
            logits = self._graphs.replay(size)
        else:
            logits = self._decoder.forward(self._mixed(plan, len(choices)), self._kv)
        tokens = self._sample(logits)
        self._last_tokens = tokens
        self._last_rows = {id(choice): row for row, choice in enumerate(choices)}
        result, ready = self._fetch(tokens[: len(choices)])
        return GpuLaunched(choices, result, ready, None, built - began)

    def collect(self, launched: GpuLaunched) -> StepTokens:
        """The sampled tokens of a launched step. The only place where the host waits for the device."""
        if launched.slow is not None:
            return self._plain.collect(launched.slow)
        if launched.ready is not None:
            launched.ready.synchronize()
        assert launched.token_ids is not None
        return StepTokens(launched.choices, launched.token_ids.tolist(), [None] * len(launched.choices), [])

    def _decode(self, size: int) -> torch.Tensor:
        return self._decoder.forward(ragged_batch(self._tensors, size, size, size, size, self._shape), self._kv)

    def _mixed(self, plan: StepPlan, num_logits: int) -> RaggedBatch:
        return ragged_batch(self._tensors, plan.num_tokens, len(plan.chunks), plan.num_single, num_logits, self._shape)

    def _feed(self, plan: StepPlan) -> None:
        singles = plan.chunks[: plan.num_single]
        if any(chunk.start >= len(chunk.choice.tokens) for chunk in singles):
            assert self._last_tokens is not None
            feed, token_ids = self._tensors["feed"][: len(singles)], self._tensors["token_ids"][: len(singles)]
            token_ids.copy_(torch.where(feed >= 0, self._last_tokens[feed.clamp(min=0)], token_ids))

    def _sample(self, logits: torch.Tensor) -> torch.Tensor:
        names = ("temperature", "top_k", "top_p", "min_p", "u")
        temperature, top_k, top_p, min_p, u = (self._tensors[name][: len(logits)] for name in names)
        return self._draw(logits, temperature, top_k, top_p, min_p, u)

    def _fetch(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.cuda.Event | None]:
        self._turn ^= 1
        result = self._results[self._turn][: len(tokens)]
        result.copy_(tokens, non_blocking=True)
        if self._device.type != "cuda":
            return result, None
        ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
        ready.record()
        return result, ready


def _is_plain(choice: Choice) -> bool:
    params = choice.request.spec.params
    return not choice.sampling.processed and params.logprobs is None and params.prompt_logprobs is None
