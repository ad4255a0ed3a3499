"""Draw one token for each sampled row of a batch, each with its own filters and its own random number."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from weir.engine.inverse_cdf import draw_from_all, draw_from_few
from weir.engine.row_weights import RowWeights
from weir.engine.truncation import Truncation, keep_leading, keep_long
from weir.engine.vocabulary_order import leading


@dataclass(frozen=True, slots=True)
class DrawBatch:
    """The sampled rows of a batch: their indices [r] int64, filters, and numbers u [r] float64 in [0, 1)."""

    rows: torch.Tensor
    filters: Truncation
    u: torch.Tensor


def draw_tokens(
    chunks: torch.Tensor, maxima: torch.Tensor, batch: DrawBatch, weights: RowWeights, candidates: int
) -> torch.Tensor:
    """The drawn ids, [r] int64. chunks: [R, N, CHUNK] float32 logits; maxima: [R, N], its chunk maxima.

    A row is weighed as a whole only if its total matters: without filters, or for top_p without top_k. The kept tokens
    of a filtered row are first looked for among the `candidates` first of the vocabulary order, at most; only rows
    that keep more take the long way.
    """
    filters, u = batch.filters, batch.u
    logits, row_maxima = chunks.flatten(1), maxima.amax(-1)
    ids = torch.empty_like(batch.rows)
    total = torch.ones_like(u)

    whole = filters.top_k.isinf() & (filters.top_p.isfinite() | (filters.min_p == 0))
    for block in _blocks(whole, weights.block_rows):
        weights.load(logits, row_maxima, batch.rows[block], filters.temperature[block])
        cumulative = weights.cumulative()
        total[block] = cumulative[:, -1]
        ids[block] = draw_from_all(weights.chunks, cumulative, u[block])

    filtered = (filters.top_k.isfinite() | filters.top_p.isfinite() | (filters.min_p > 0)).nonzero().squeeze(1)
    if not len(filtered):
        return ids
    count = int(filters.top_k[filtered].max().clamp(max=candidates))
    best, best_ids = leading(chunks, maxima, batch.rows[filtered], count)
    kept, complete = keep_leading(best, filters[filtered], total[filtered])
    ids[filtered] = draw_from_few(best_ids, kept, u[filtered])

    incomplete = torch.zeros_like(whole)
    incomplete[filtered] = ~complete
    for block in _blocks(incomplete, weights.block_rows):
        weights.load(logits, row_maxima, batch.rows[block], filters.temperature[block])
        keep_long(weights, filters[block])
        ids[block] = draw_from_all(weights.chunks, weights.cumulative(), u[block])
    return ids


def _blocks(chosen: torch.Tensor, size: int) -> tuple[torch.Tensor, ...]:
    """Indices where `chosen` [r] bool is set, in pieces of at most `size`."""
    index = chosen.nonzero().squeeze(1)
    return tuple(index[i : i + size] for i in range(0, len(index), size))
