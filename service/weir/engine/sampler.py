"""One token for every row of logits. docs/sampling.md states the order of operations, the tie rule and edge values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from weir.engine.inverse_cdf import chunk_sums, draw_from_all, draw_from_few
from weir.engine.logit_processors import process_logits
from weir.engine.logprobs import LogprobRows
from weir.engine.request import TokenLogprobs
from weir.engine.sampling_state import SamplingState
from weir.engine.truncation import Truncation, keep_leading, truncate
from weir.engine.vocabulary_order import chunked, finite_maxima, first, leading

_CANDIDATES = 128  # tokens looked at before a whole row is; a nucleus is rarely larger
_BLOCK_LOGITS = 2**20  # logits weighed at once: few enough to stay in the CPU's cache between passes
_PROMPT_ROWS = 64  # prompt rows scored at once: a chunk has hundreds, and each row's log-softmax is as long as the row


@dataclass(frozen=True, slots=True)
class SampleRow:
    """One row of logits: the choice it belongs to, and the index that the new token will have in the sequence."""

    state: SamplingState
    position: int


@dataclass(frozen=True, slots=True)
class Sampled:
    """The tokens, one for each row, and what to report of each (None where the request wants no logprobs)."""

    token_ids: list[int]
    logprobs: list[TokenLogprobs | None]


class Sampler:
    """Samples batches of rows. A row's token depends on that row alone, bit for bit, and never on its neighbours.

    `candidates` trades speed only: a row that keeps more tokens than that takes a slower way to the same token.
    """

    def __init__(self, vocab_size: int, device: torch.device | str = "cpu", candidates: int = _CANDIDATES) -> None:
        self._vocab_size = vocab_size
        self._device = torch.device(device)
        self._candidates = candidates

    def __call__(self, logits: torch.Tensor, rows: Sequence[SampleRow]) -> Sampled:
        """Choose a token for each row of `logits` [R, V] float32, which are scratch: processors change them in place.

        Does not append to the states: the caller does, for each token it takes.
        Raises ValueError if the logits are not (rows, vocabulary).
        """
        if logits.shape != (len(rows), self._vocab_size):
            raise ValueError(f"logits are {tuple(logits.shape)}, expected ({len(rows)}, {self._vocab_size})")
        if not rows:
            return Sampled([], [])
        states = [row.state for row in rows]
        chunks = chunked(logits)
        maxima = finite_maxima(chunks)
        scored = [r for r, state in enumerate(states) if state.params.logprobs is not None]
        logprobs = LogprobRows(chunks[scored], maxima[scored], [states[r].params.logprobs or 0 for r in scored])
        if any(state.processed for state in states):
            process_logits(chunks.flatten(1), states)
            maxima = finite_maxima(chunks)
        chosen = first(chunks, maxima)
        self._draw(chosen, chunks, maxima, rows)
        token_ids = chosen.tolist()
        reports = iter(logprobs.of([token_ids[r] for r in scored]))
        return Sampled(token_ids, [None if state.params.logprobs is None else next(reports) for state in states])

    def prompt_logprobs(self, logits: torch.Tensor, token_ids: Sequence[int], top_k: int) -> list[TokenLogprobs]:
        """Report prompt tokens: logits [N, V] float32 (scratch), row i being the model's prediction of token_ids[i]."""
        reports: list[TokenLogprobs] = []
        for start in range(0, len(token_ids), _PROMPT_ROWS):
            tokens = token_ids[start : start + _PROMPT_ROWS]
            chunks = chunked(logits[start : start + _PROMPT_ROWS])
            reports += LogprobRows(chunks, finite_maxima(chunks), [top_k] * len(tokens)).of(tokens)
        return reports

    def _draw(
        self, chosen: torch.Tensor, chunks: torch.Tensor, maxima: torch.Tensor, rows: Sequence[SampleRow]
    ) -> None:
        """Replace the greedy tokens `chosen` [R] of the rows that are sampled."""
        few: list[int] = []
        many: list[int] = []
        for r, row in enumerate(rows):
            if not row.state.greedy:
                (few if 0 < row.state.params.top_k <= self._candidates else many).append(r)
        block_rows = max(1, _BLOCK_LOGITS // self._vocab_size)
        blocks = [(few, _draw_few)] if few else []
        blocks += [(many[i : i + block_rows], self._draw_many) for i in range(0, len(many), block_rows)]
        for block, draw in blocks:
            drawn = [rows[r] for r in block]
            filters = Truncation.of([row.state.params for row in drawn], self._device)
            u = [row.state.random(row.position) for row in drawn]
            chosen[block] = draw(
                chunks[block],
                maxima[block],
                filters,
                torch.tensor(u, dtype=torch.float64, device=self._device),
            )

    def _draw_many(
        self, chunks: torch.Tensor, maxima: torch.Tensor, filters: Truncation, u: torch.Tensor
    ) -> torch.Tensor:
        """Rows that may keep many tokens: weigh all, then look for the last kept one among the candidates."""
        logits = chunks.flatten(1)
        weights = logits - maxima.amax(-1, keepdim=True)
        weights.div_(filters.temperature[:, None]).exp_()
        cumulative = chunk_sums(weights.view_as(chunks))
        token_ids = draw_from_all(weights.view_as(chunks), cumulative, u)
        rows = filters.any().nonzero().squeeze(1)
        if not len(rows):
            return token_ids
        candidates, ids = leading(chunks[rows], maxima[rows], self._candidates)
        kept, num_kept = keep_leading(candidates, filters[rows], cumulative[rows, -1])
        token_ids[rows] = draw_from_few(ids, kept, u[rows])
        # The end is not among the candidates, or not known without the weight of the first top_k.
        rows = rows[(num_kept == candidates.shape[1]) | filters.top_k[rows].isfinite()]
        if len(rows):
            left = weights[rows]
            truncate(logits[rows], left, filters[rows])
            left = left.view(len(rows), *chunks.shape[1:])
            token_ids[rows] = draw_from_all(left, chunk_sums(left), u[rows])
        return token_ids


def _draw_few(chunks: torch.Tensor, maxima: torch.Tensor, filters: Truncation, u: torch.Tensor) -> torch.Tensor:
    """Rows with a small top_k: nothing else of the row matters."""
    candidates, ids = leading(chunks, maxima, int(filters.top_k.max()))
    kept, _ = keep_leading(candidates, filters, None)
    return draw_from_few(ids, kept, u)
