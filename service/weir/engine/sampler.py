"""One token for every row of logits. docs/sampling.md states the order of operations, the tie rule and edge values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from weir.engine.draw import DrawBatch, draw_tokens
from weir.engine.logit_processors import process_logits
from weir.engine.logprobs import LogprobRows
from weir.engine.request import TokenLogprobs
from weir.engine.row_weights import RowWeights
from weir.engine.sampling_state import SamplingState
from weir.engine.truncation import Truncation
from weir.engine.vocabulary_order import CHUNK, chunked, finite_maxima, first

_CANDIDATES = 128  # tokens looked at before a whole row is; what top_p and min_p keep is rarely more


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
        self._weights = RowWeights(-(-vocab_size // CHUNK) * CHUNK, self._device)

    @torch.inference_mode()
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
        processed = any(state.processed for state in states)
        chunks = chunked(logits)
        maxima = finite_maxima(chunks)

        reported = [r for r, state in enumerate(states) if state.params.logprobs is not None]
        logprobs = None
        if reported:
            own = chunks.flatten(1).clone() if processed else chunks.flatten(1)
            num_top = [states[r].params.logprobs or 0 for r in reported]
            logprobs = LogprobRows(own, maxima, reported, num_top, self._weights)

        if processed:
            process_logits(chunks.flatten(1), states)
            maxima = finite_maxima(chunks)
        chosen = first(chunks, maxima)
        sampled = [r for r, state in enumerate(states) if not state.greedy]
        if sampled:
            batch = self._draw_batch([rows[r] for r in sampled], sampled)
            chosen[batch.rows] = draw_tokens(chunks, maxima, batch, self._weights, self._candidates)

        token_ids = chosen.tolist()
        reports: list[TokenLogprobs | None] = [None] * len(rows)
        if logprobs is not None:
            for r, report in zip(reported, logprobs.of([token_ids[r] for r in reported]), strict=True):
                reports[r] = report
        return Sampled(token_ids, reports)

    @torch.inference_mode()
    def prompt_logprobs(self, logits: torch.Tensor, token_ids: Sequence[int], top_k: int) -> list[TokenLogprobs]:
        """Report prompt tokens: logits [N, V] float32 (scratch), row i being the model's prediction of token_ids[i]."""
        chunks = chunked(logits)
        rows, num_top = range(len(token_ids)), [top_k] * len(token_ids)
        return LogprobRows(chunks.flatten(1), finite_maxima(chunks), rows, num_top, self._weights).of(token_ids)

    def _draw_batch(self, rows: Sequence[SampleRow], index: Sequence[int]) -> DrawBatch:
        return DrawBatch(
            torch.tensor(index, dtype=torch.int64, device=self._device),
            Truncation.of([row.state.params for row in rows], self._device),
            torch.tensor([row.state.random(row.position) for row in rows], dtype=torch.float64, device=self._device),
        )
