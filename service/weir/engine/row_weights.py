"""Whole rows as weights exp((logit - maximum) / temperature), a few rows at a time in buffers that are kept.

Fresh memory would cost more than the arithmetic, since the kernel clears every page of it; and a block that fits the
CPU's cache is passed over several times for little more than once.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from weir.engine.vocabulary_order import CHUNK, order_key

_BLOCK_LOGITS_CPU = 2**19
_BLOCK_LOGITS_GPU = 2**24  # no cache to stay in, but launches to save
_MAX_BUCKETS = 4096


class RowWeights:
    """Buffers for `block_rows` rows of `width` logits, a multiple of CHUNK."""

    def __init__(self, width: int, device: torch.device) -> None:
        logits = _BLOCK_LOGITS_CPU if device.type == "cpu" else _BLOCK_LOGITS_GPU
        self.block_rows = max(1, logits // width)
        self._buckets = min(_MAX_BUCKETS, width)
        self._logits = torch.empty(self.block_rows, width, dtype=torch.float32, device=device)
        self._weights = torch.empty_like(self._logits)
        self._scratch = torch.empty_like(self._logits)
        self._float64 = torch.empty_like(self._logits, dtype=torch.float64)
        self._int32 = torch.empty_like(self._logits, dtype=torch.int32)
        self._int64 = torch.empty_like(self._logits, dtype=torch.int64)
        self._maxima = torch.empty(0, 1, device=device)

    def load(self, logits: torch.Tensor, maxima: torch.Tensor, rows: torch.Tensor, temperature: torch.Tensor) -> None:
        """Weigh `rows` [r] int64, at most block_rows, of logits [R, width] with row maxima [R], at temperatures [r]."""
        self._maxima = maxima[rows, None]
        torch.index_select(logits, 0, rows, out=self._view(self._logits))
        torch.sub(self._view(self._logits), self._maxima, out=self._view(self._weights))
        self._view(self._weights).div_(temperature[:, None]).exp_()

    @property
    def chunks(self) -> torch.Tensor:
        """The weights, [r, N, CHUNK] float32; overwritten by the next `load`."""
        weights = self._view(self._weights)
        return weights.view(len(weights), -1, CHUNK)

    def cumulative(self) -> torch.Tensor:
        """The weight of each row up to the end of each chunk, [r, N] float64."""
        weights = self._view(self._float64).copy_(self._view(self._weights))
        return weights.view(len(weights), -1, CHUNK).sum(-1).cumsum(-1)

    def keep_first(self, count: torch.Tensor, span: torch.Tensor) -> None:
        """Zero all but the first `count` [r] tokens of each row in vocabulary order; inf keeps all."""
        self._keep(self._view(self._float64).fill_(1.0), count, span)

    def keep_weight(self, limit: torch.Tensor, span: torch.Tensor) -> None:
        """Zero each token whose predecessors in vocabulary order weigh `limit` [r] float64 or more; inf keeps all."""
        self._keep(self._view(self._float64).copy_(self._view(self._weights)), limit, span)

    def keep_above(self, least: torch.Tensor) -> None:
        """Zero each weight below `least` [r] float32."""
        weights = self._view(self._weights)
        weights.mul_(weights >= least[:, None])

    def _view(self, buffer: torch.Tensor) -> torch.Tensor:
        return buffer[: len(self._maxima)]

    def _keep(self, measure: torch.Tensor, limit: torch.Tensor, span: torch.Tensor) -> None:
        """Zero each token whose predecessors in vocabulary order have a total `measure` [r, V] of `limit` [r] or more.

        Sorting rows would take ten times as long. Tokens are dropped into buckets of equal width, `span` [r] logits in
        all below the maximum; the totals decide whole buckets, and only the bucket in which a row ends is sorted.
        """
        bucket = torch.sub(self._maxima, self._view(self._logits), out=self._view(self._scratch))
        bucket.mul_(self._buckets / span[:, None]).clamp_(max=self._buckets - 1).floor_()
        # Through int32, since no CPU instruction makes many int64 of float32 at once.
        index = self._view(self._int64).copy_(self._view(self._int32).copy_(bucket))
        totals = torch.zeros(len(bucket), self._buckets, dtype=torch.float64, device=bucket.device)
        before = F.pad(totals.scatter_add_(1, index, measure).cumsum(-1), (1, 0))
        limit = limit.double()[:, None]
        last = (before[:, :-1] < limit).sum(-1, keepdim=True) - 1
        last = torch.where(limit.isinf(), self._buckets, last)
        end = last.float()

        row, token = (bucket == end).nonzero(as_tuple=True)
        weights = self._weights[row, token]
        kept = self._kept_in_bucket(row, token, measure, before.gather(1, last), limit)
        # 1 before the last bucket, 0 from it on; a product of floats, as masks of booleans are slow.
        self._view(self._weights).mul_(torch.sub(end, bucket, out=bucket).clamp_(0.0, 1.0))
        self._weights[row, token] = weights * kept

    def _kept_in_bucket(
        self, row: torch.Tensor, token: torch.Tensor, measure: torch.Tensor, before: torch.Tensor, limit: torch.Tensor
    ) -> torch.Tensor:
        """Whether each member (row[i], token[i]) of the last buckets is kept, [M] bool; `before`: [r, 1], their starts.

        Each row's members stand in a line of their own: a running sum through several rows would round differently in
        another batch.
        """
        lengths = torch.bincount(row, minlength=len(measure))
        place = torch.arange(len(row), device=row.device) - (lengths.cumsum(0) - lengths)[row]
        keys = torch.full((len(measure), int(lengths.max())), torch.iinfo(torch.int64).min, device=row.device)
        keys[row, place] = order_key(self._logits[row, token], token)
        order = keys.argsort(descending=True)
        line = torch.zeros_like(keys, dtype=torch.float64)
        line[row, place] = measure[row, token]
        through = before + line.gather(1, order).cumsum(-1)
        predecessors = torch.cat([before, through[:, :-1]], dim=1)[:, : keys.shape[1]]
        return torch.empty_like(keys, dtype=torch.bool).scatter_(1, order, predecessors < limit)[row, place]
