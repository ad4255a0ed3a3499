"""Which tokens top_k, top_p and min_p keep. Each keeps a prefix of the vocabulary order, and so do all three together.

A token is kept while its predecessors in the order number fewer than top_k; while their share of what top_k left is
below top_p; and while its probability is at least min_p times the largest. The first token is always kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from weir.engine.request import SamplingParams
from weir.engine.row_weights import RowWeights

# Logits (top_k) or nats (top_p) below the maximum within which the end of a long prefix is found fast.
_SPAN = 32.0


@dataclass(frozen=True, slots=True)
class Truncation:
    """The filters of R rows, [R] each; a filter that is off is infinite (top_k, top_p) or 0 (min_p).

    temperature, top_k, min_p: float32; top_p: float64. The temperature is above 0.
    """

    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor

    @classmethod
    def of(cls, params: Sequence[SamplingParams], device: torch.device) -> Truncation:
        """The filters of a batch; row r has those of params[r]."""
        return cls(
            torch.tensor([p.temperature for p in params], dtype=torch.float32, device=device),
            torch.tensor([p.top_k if p.top_k > 0 else torch.inf for p in params], dtype=torch.float32, device=device),
            torch.tensor([p.top_p if p.top_p < 1 else torch.inf for p in params], dtype=torch.float64, device=device),
            torch.tensor([p.min_p for p in params], dtype=torch.float32, device=device),
        )

    def __getitem__(self, rows: torch.Tensor) -> Truncation:
        return Truncation(self.temperature[rows], self.top_k[rows], self.top_p[rows], self.min_p[rows])


def keep_leading(logits: torch.Tensor, filters: Truncation, total: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights of the first C tokens of each row with the truncated ones zeroed, and whether they are all there is.

    A weight is exp((logit - maximum) / temperature): the first is 1. logits: [R, C] in vocabulary order.
    total: [R] float64, the weight of the whole row; used where top_p is on and top_k is off.
    Returns [R, C] float64 and [R] bool. Where False, more of the row may be kept, and the weights are of no use.
    """
    distance = logits.double() - logits[:, :1].double()
    weights = (distance / filters.temperature[:, None].double()).exp()
    count = logits.shape[1]
    within_k = torch.arange(count, device=logits.device) < filters.top_k[:, None]
    weights *= within_k
    cumulative = weights.cumsum(-1)
    before = F.pad(cumulative[:, :-1], (1, 0))
    limit = filters.top_p * torch.where(filters.top_k.isinf(), total, cumulative[:, -1])
    kept = within_k & (before < limit[:, None]) & (weights >= filters.min_p[:, None])
    kept[:, 0] = True
    ends_here = ~kept[:, -1] & filters.top_k.isinf()
    return weights * kept, ends_here | (filters.top_k <= count)


def keep_long(rows: RowWeights, filters: Truncation) -> None:
    """Zero the truncated weights of the loaded rows, however many are kept; `filters` are those of the same rows."""
    if bool(filters.top_k.isfinite().any()):
        rows.keep_first(filters.top_k, torch.full_like(filters.temperature, _SPAN))
    if bool(filters.top_p.isfinite().any()):
        rows.keep_weight(filters.top_p * rows.cumulative()[:, -1], _SPAN * filters.temperature)
    if bool((filters.min_p > 0).any()):
        rows.keep_above(filters.min_p)
