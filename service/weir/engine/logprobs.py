"""Log-probabilities as they are reported: float32 log-softmax of the model's own logits, before any processor."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from weir.engine.request import TokenLogprobs
from weir.engine.vocabulary_order import leading


class LogprobRows:
    """The log-softmax of some rows, taken before processors touch the logits, and their best alternatives."""

    def __init__(self, chunks: torch.Tensor, maxima: torch.Tensor, num_top: Sequence[int]) -> None:
        """chunks: [R, N, CHUNK] float32 logits; maxima: [R, N]; num_top: alternatives wanted for each row."""
        self._logprobs = torch.log_softmax(chunks.flatten(1), dim=-1)
        self._num_top = num_top
        self._top: list[list[tuple[int, float]]] = [[] for _ in num_top]
        if any(num_top):
            _, ids = leading(chunks, maxima, max(num_top))
            values = self._logprobs.gather(1, ids)
            self._top = [list(zip(*pair, strict=True)) for pair in zip(ids.tolist(), values.tolist(), strict=True)]

    def of(self, token_ids: Sequence[int]) -> list[TokenLogprobs]:
        """What to report for token_ids[r] of row r."""
        index = torch.tensor(token_ids, dtype=torch.int64, device=self._logprobs.device)[:, None]
        values = self._logprobs.gather(1, index).squeeze(1).tolist()
        rows = zip(token_ids, values, self._top, self._num_top, strict=True)
        return [TokenLogprobs(token_id, value, tuple(top[:count])) for token_id, value, top, count in rows]
