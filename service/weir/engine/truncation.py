"""Which tokens top_k, top_p and min_p keep. Each keeps a prefix of the vocabulary order, and so do all three together.

A token is kept while its predecessors in the order number fewer than top_k; while their share of what top_k left is
below top_p; and while its probability is at least min_p times the largest. The first token is always kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from weir.engine.inverse_cdf import chunk_sums
from weir.engine.request import SamplingParams
from weir.engine.vocabulary_order import CHUNK, order_key

_BUCKETS = 4096
_SPAN = 32.0  # nats below the maximum that the buckets resolve; what lies deeper weighs less than 1e-13 of the first


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

    def any(self) -> torch.Tensor:
        """[R] bool: whether any filter of the row is on."""
        return self.top_k.isfinite() | self.top_p.isfinite() | (self.min_p > 0)

    def __getitem__(self, rows: torch.Tensor | slice) -> Truncation:
        return Truncation(self.temperature[rows], self.top_k[rows], self.top_p[rows], self.min_p[rows])


def keep_leading(
    logits: torch.Tensor, filters: Truncation, total: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights of the first C tokens of each row with the truncated ones zeroed, and how many are kept.

    A weight is exp((logit - maximum) / temperature): the first is 1. logits: [R, C] in vocabulary order.
    total: [R] float64, the weight of what top_k left; None: top_k is at most C in every row, so it is known here.
    Returns [R, C] float64 and [R] int64. Where all C are kept, more of the row may be.
    """
    distance = logits.double() - logits[:, :1].double()
    weights = (distance / filters.temperature[:, None].double()).exp()
    within_k = torch.arange(logits.shape[1], device=logits.device) < filters.top_k[:, None]
    weights *= within_k
    cumulative = weights.cumsum(-1)
    before = F.pad(cumulative[:, :-1], (1, 0))
    limit = filters.top_p * (cumulative[:, -1] if total is None else total)
    kept = within_k & (before < limit[:, None]) & (weights >= filters.min_p[:, None])
    kept[:, 0] = True
    return weights * kept, kept.sum(-1)


def truncate(logits: torch.Tensor, weights: torch.Tensor, filters: Truncation) -> None:
    """Zero the truncated `weights` in place, however many tokens are kept. logits, weights: [R, V] float32.

    What bounds a prefix is a count of tokens for top_k and a weight for top_p.
    """
    rows = filters.top_k.isfinite().nonzero().squeeze(1)
    if len(rows):
        span = torch.full_like(filters.temperature[rows], _SPAN)
        kept = _prefix(logits[rows], torch.ones_like(weights[rows]), filters.top_k[rows].double(), span)
        weights[rows] *= kept
    rows = filters.top_p.isfinite().nonzero().squeeze(1)
    if len(rows):
        left = weights[rows]
        total = chunk_sums(left.view(len(rows), -1, CHUNK))[:, -1]
        kept = _prefix(logits[rows], left, filters.top_p[rows] * total, _SPAN * filters.temperature[rows])
        weights[rows] = left * kept
    weights *= weights >= filters.min_p[:, None]


def _prefix(logits: torch.Tensor, measure: torch.Tensor, limit: torch.Tensor, span: torch.Tensor) -> torch.Tensor:
    """[R, V] bool: the tokens whose predecessors in the vocabulary order have a total measure below `limit` [R].

    Sorting a row costs far more than this: tokens are dropped into buckets of equal width over `span` [R] below the
    maximum, whole buckets are decided by their totals, and only the one bucket that holds the end is sorted.
    """
    distance = (logits.amax(-1, keepdim=True) - logits) * (_BUCKETS / span)[:, None]
    bucket = distance.clamp_(max=_BUCKETS - 1).int().long()
    totals = torch.zeros(len(logits), _BUCKETS, dtype=torch.float64, device=logits.device)
    totals.scatter_add_(1, bucket, measure.double())
    before = F.pad(totals.cumsum(-1)[:, :-1], (1, 0))
    last = ((before < limit[:, None]).sum(-1, keepdim=True) - 1).clamp(min=0)
    kept = bucket < last

    row, token = (bucket == last).nonzero(as_tuple=True)
    order = order_key(logits[row, token], token).argsort(descending=True)
    order = order[row[order].argsort(stable=True)]
    row, token = row[order], token[order]
    # Back to one padded line for each row: a running sum over several rows would round differently in another batch.
    lengths = torch.bincount(row, minlength=len(logits))
    place = torch.arange(len(row), device=row.device) - (lengths.cumsum(0) - lengths)[row]
    line = torch.zeros(len(logits), int(lengths.max()) + 1, dtype=torch.float64, device=logits.device)
    line[row, place + 1] = measure[row, token].double()
    predecessors = before.gather(1, last) + line.cumsum(-1)
    kept[row, token] = predecessors[row, place] < limit[row]
    return kept
