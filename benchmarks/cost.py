"""FLOPs and bytes that a step cannot do without, counted from the model's shape and the step's record.

FLOPs: two for each weight that meets a token, and in attention two for each product of QK and PV. The last layer's
output projection and MLP, and the lm_head, count for the rows that sample only. Bytes: every weight once a step, each
sequence's visible K and V once, new K and V written. Activations are taken to stay in the caches.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from weir.engine.records import ChunkRecord, StepRecord
from weir.models.spec import ModelSpec

from benchmarks.machine import Peaks


@dataclass(frozen=True, slots=True)
class StepCost:
    """The least work of one step."""

    flops: float
    bytes: float

    def least_s(self, peaks: Peaks) -> float:
        """The roofline: no machine with these peaks is faster."""
        return max(self.flops / peaks.flops, self.bytes / peaks.bytes_per_s)

    @property
    def intensity(self) -> float:
        """FLOPs for each byte."""
        return self.flops / self.bytes


class CostModel:
    """The costs of one model's steps; weights and KV of `element_bytes` a number."""

    def __init__(self, spec: ModelSpec, element_bytes: int = 2) -> None:
        self._spec = spec
        self._element_bytes = element_bytes
        heads = spec.num_heads * spec.head_dim
        self._qkv = spec.hidden_size * (heads + 2 * spec.num_kv_heads * spec.head_dim)
        self._rest_of_layer = heads * spec.hidden_size + 3 * spec.hidden_size * spec.intermediate_size
        self._lm_head = spec.vocab_size * spec.hidden_size

    @property
    def weight_bytes(self) -> int:
        """Bytes of all matrices; a separate embedding is read by the row and not counted."""
        layers = self._spec.num_layers * (self._qkv + self._rest_of_layer)
        return (layers + self._lm_head) * self._element_bytes

    def step(self, record: StepRecord, prompt_tokens: Mapping[str, int]) -> StepCost:
        """prompt_tokens: of each request, to know which chunks end a prompt and so sample."""
        chunks = (*record.decodes, *record.prefills)
        tokens = sum(chunk.length for chunk in chunks)
        rows = sum(chunk.start + chunk.length >= prompt_tokens[chunk.request_id] for chunk in chunks)
        weights = self.weight_bytes if rows else self.weight_bytes - self._lm_head * self._element_bytes
        return StepCost(
            self.product_flops(tokens, rows) + self.lm_head_flops(rows) + self._attention_flops(chunks),
            weights + self._kv_bytes(chunks),
        )

    def product_flops(self, tokens: int, rows: int) -> float:
        """Of all layers; after the last attention only the rows that want logits go on."""
        layers = self._spec.num_layers
        return 2.0 * (layers * self._qkv * tokens + self._rest_of_layer * ((layers - 1) * tokens + rows))

    def lm_head_flops(self, rows: int) -> float:
        """Of the rows that want logits."""
        return 2.0 * self._lm_head * rows

    def _attention_flops(self, chunks: Iterable[ChunkRecord]) -> float:
        width = 4.0 * self._spec.num_heads * self._spec.head_dim
        return width * sum(_seen(c, window) for c in chunks for window in self._spec.sliding_window)

    def _kv_bytes(self, chunks: Iterable[ChunkRecord]) -> float:
        token_bytes = 2.0 * self._spec.num_kv_heads * self._spec.head_dim * self._element_bytes
        return token_bytes * sum(_span(c, window) + c.length for c in chunks for window in self._spec.sliding_window)


def _seen(chunk: ChunkRecord, window: int | None) -> int:
    """Pairs of a token of the chunk and a token that it attends to, itself included."""
    ends = range(chunk.start + 1, chunk.start + chunk.length + 1)
    return sum(ends) if window is None else sum(min(end, window) for end in ends)


def _span(chunk: ChunkRecord, window: int | None) -> int:
    """Tokens before the chunk that any token of it attends to."""
    return chunk.start if window is None else min(chunk.start, window - 1)
