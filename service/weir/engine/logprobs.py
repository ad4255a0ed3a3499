"""Log-probabilities as they are reported: the log-softmax of the model's own logits, before any processor."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from weir.engine.request import TokenLogprobs
from weir.engine.row_weights import RowWeights
from weir.engine.vocabulary_order import CHUNK, leading


class LogprobRows:
    """Some rows of logits, normalised: the best alternatives at once, the chosen tokens when they are known.

    logits: [R, V] float32, which may not change until `of` is called; maxima: [R, V / CHUNK], its chunk maxima;
    rows: the rows to report; num_top: how many alternatives of each; weights: buffers to sum a row in.
    """

    def __init__(
        self,
        logits: torch.Tensor,
        maxima: torch.Tensor,
        rows: Sequence[int],
        num_top: Sequence[int],
        weights: RowWeights,
    ) -> None:
        self._logits = logits
        self._rows = torch.tensor(rows, dtype=torch.int64, device=logits.device)
        self._num_top = num_top
        row_maxima = maxima.amax(-1)
        temperature = torch.ones(len(rows), device=logits.device)
        self._log_total = row_maxima[self._rows].double()
        for start in range(0, len(rows), weights.block_rows):
            block = slice(start, start + weights.block_rows)
            weights.load(logits, row_maxima, self._rows[block], temperature[block])
            self._log_total[block] += weights.cumulative()[:, -1].log()
        self._top: list[list[tuple[int, float]]] = [[] for _ in rows]
        if rows and any(num_top):
            chunks = logits.view(len(logits), -1, CHUNK)
            best, ids = leading(chunks, maxima, self._rows, max(num_top))
            values = (best - self._log_total[:, None]).tolist()
            self._top = [list(zip(*pair, strict=True)) for pair in zip(ids.tolist(), values, strict=True)]

    def of(self, token_ids: Sequence[int]) -> list[TokenLogprobs]:
        """What to report for token_ids[i], chosen in the i-th of the rows."""
        ids = torch.tensor(token_ids, dtype=torch.int64, device=self._logits.device)
        values = (self._logits[self._rows, ids] - self._log_total).tolist()
        rows = zip(token_ids, values, self._top, self._num_top, strict=True)
        return [TokenLogprobs(token_id, value, tuple(top[:count])) for token_id, value, top, count in rows]
