"""Choose a token by inverse CDF: the first kept id, in ascending order of ids, whose cumulative weight exceeds u times
the total. Cumulative sums are float64 and run along one row from left to right, so no other row can change a result.
"""

from __future__ import annotations

import torch

from weir.engine.vocabulary_order import CHUNK


def draw_from_few(ids: torch.Tensor, weights: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    """Draw one id per row, [R]. ids: [R, C], in any order; weights: [R, C] float64, 0 = not kept; u: [R] float64."""
    ids, ascending = ids.sort(-1)
    cumulative = weights.gather(1, ascending).cumsum(-1)
    place = _first_above(cumulative, u[:, None] * cumulative[:, -1:])
    return ids.gather(1, place).squeeze(1)


def draw_from_all(chunks: torch.Tensor, cumulative: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    """Draw one id per row, [R].

    chunks: [R, N, CHUNK] float32 weights; cumulative: [R, N] float64, up to each chunk's end; u: [R] float64.
    """
    target = u[:, None] * cumulative[:, -1:]
    chunk = _first_above(cumulative, target)
    before = torch.where(chunk > 0, cumulative.gather(1, (chunk - 1).clamp(min=0)), 0.0)
    row = torch.arange(len(chunks), device=chunks.device)
    within = chunks[row, chunk.squeeze(1)].cumsum(-1, dtype=torch.float64)
    return (chunk * CHUNK + _first_above(within, target - before)).squeeze(1)


def _first_above(cumulative: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """[R, 1] index of the first cumulative weight above `target` [R, 1], and never past the last that has weight."""
    last = torch.searchsorted(cumulative, cumulative[:, -1:].contiguous())
    return torch.minimum(torch.searchsorted(cumulative, target, right=True), last)
