"""Change logits before sampling: logit_bias, penalties, min_tokens, in this order, for a whole batch at once.

Only the logits of the tokens concerned are read and written, so the cost does not depend on the vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from weir.engine.sampling_state import SamplingState


def process_logits(logits: torch.Tensor, states: Sequence[SamplingState]) -> None:
    """Apply each row's processors to `logits` [R, V] float32 in place; row r belongs to states[r]."""
    _add_bias(logits, [(row, state) for row, state in enumerate(states) if state.params.logit_bias])
    _penalise(logits, [(row, state) for row, state in enumerate(states) if state.seen is not None])
    _suppress_stops(logits, [(row, state) for row, state in enumerate(states) if state.stops_suppressed])


Rows = Sequence[tuple[int, SamplingState]]


def _add_bias(logits: torch.Tensor, rows: Rows) -> None:
    if rows:
        where = _flat_index(logits, rows, [state.bias_ids for _, state in rows])
        bias = torch.from_numpy(np.concatenate([state.biases for _, state in rows])).to(logits.device)
        # Adds up when a token is named twice.
        logits.view(-1).index_add_(0, where, bias)


def _penalise(logits: torch.Tensor, rows: Rows) -> None:
    """Repetition (Keskar et al. 2019, "CTRL", 4.1): positive logits are divided, others multiplied.

    Then presence, once for a token that is in the output, and frequency, once for each time it is.
    """
    if not rows:
        return
    seen = [state.seen for _, state in rows if state.seen is not None]
    lengths = [len(tokens.ids) for tokens in seen]

    def each(values: list[float]) -> torch.Tensor:
        return torch.from_numpy(np.repeat(np.array(values, dtype=np.float32), lengths)).to(logits.device)

    repetition = each([state.params.repetition_penalty for _, state in rows])
    presence = each([state.params.presence_penalty for _, state in rows])
    frequency = each([state.params.frequency_penalty for _, state in rows])
    counts = torch.from_numpy(np.concatenate([tokens.counts for tokens in seen])).to(logits.device)

    where = _flat_index(logits, rows, [tokens.ids for tokens in seen])
    flat = logits.view(-1)
    value = flat[where]
    value = torch.where(value > 0, value / repetition, value * repetition)
    value -= presence * (counts > 0) + frequency * counts
    flat[where] = value


def _suppress_stops(logits: torch.Tensor, rows: Rows) -> None:
    if rows:
        logits.view(-1)[_flat_index(logits, rows, [state.stop_ids for _, state in rows])] = -torch.inf


def _flat_index(logits: torch.Tensor, rows: Rows, ids: Sequence[npt.NDArray[np.int64]]) -> torch.Tensor:
    """Indices into the flattened logits of `ids[i]` in the i-th row of `rows`."""
    width = logits.shape[1]
    flat = np.concatenate([token_ids + row * width for (row, _), token_ids in zip(rows, ids, strict=True)])
    return torch.from_numpy(flat).to(logits.device)
