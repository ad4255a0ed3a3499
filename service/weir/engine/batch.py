"""From a step plan to the ragged batch that the model computes: every planned token once, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from weir_kernels.ragged import RaggedBatch

from weir.engine.plan import StepPlan
from weir.engine.request import Choice


@dataclass(frozen=True, slots=True)
class PromptRows:
    """Rows first_row..first_row + count of the logits predict prompt tokens first_token, first_token + 1, ..."""

    choice: Choice
    first_row: int
    first_token: int
    count: int


@dataclass(frozen=True, slots=True)
class Batch:
    """The model's input, and what its rows of logits are for.

    sampled: the choices whose next token is sampled; row i of `sample_rows` (an index into the logits) is theirs.
    scored: prompt positions whose log-probabilities were asked for.
    """

    ragged: RaggedBatch
    sampled: tuple[Choice, ...]
    sample_rows: tuple[int, ...]
    scored: tuple[PromptRows, ...]


def build_batch(plan: StepPlan, block_size: int, device: torch.device) -> Batch:
    """Lay the chunks of `plan` out in one dimension. The plan must have at least one chunk."""
    chunks = plan.chunks
    starts = np.array([c.start for c in chunks], dtype=np.int64)
    lengths = np.array([c.length for c in chunks], dtype=np.int64)
    cu_seqlens = np.zeros(len(chunks) + 1, dtype=np.int32)
    np.cumsum(lengths, out=cu_seqlens[1:])
    num_tokens = int(cu_seqlens[-1])
    owner = np.repeat(np.arange(len(chunks)), lengths)
    positions = np.arange(num_tokens) - cu_seqlens[:-1][owner] + starts[owner]
    tables = _block_tables([c.choice.blocks for c in chunks])
    slots = tables[owner, positions // block_size].astype(np.int64) * block_size + positions % block_size
    logit_rows, sampled, sample_rows, scored = _wanted_logits(plan, cu_seqlens)
    ragged = RaggedBatch(
        token_ids=_tensor(_token_ids(plan, num_tokens), device),
        positions=_tensor(positions, device),
        slot_mapping=_tensor(slots, device),
        cu_seqlens=_tensor(cu_seqlens, device),
        seq_lens=_tensor((starts + lengths).astype(np.int32), device),
        block_tables=_tensor(tables, device),
        logit_rows=_tensor(np.array(logit_rows, dtype=np.int64), device),
        num_decodes=plan.num_single,
        max_query_len=int(lengths.max()),
        max_seq_len=int((starts + lengths).max()),
    )
    return Batch(ragged, tuple(sampled), tuple(sample_rows), tuple(scored))


def _token_ids(plan: StepPlan, num_tokens: int) -> np.ndarray:
    singles = [c.choice.tokens[c.start] for c in plan.chunks[: plan.num_single]]
    token_ids = np.empty(num_tokens, dtype=np.int64)
    token_ids[: plan.num_single] = singles
    offset = plan.num_single
    for chunk in plan.chunks[plan.num_single :]:
        token_ids[offset : offset + chunk.length] = chunk.choice.tokens[chunk.start : chunk.start + chunk.length]
        offset += chunk.length
    return token_ids


def _block_tables(blocks: Sequence[Sequence[int]]) -> np.ndarray:
    tables = np.zeros((len(blocks), max(map(len, blocks))), dtype=np.int32)
    for row, held in zip(tables, blocks, strict=True):
        row[: len(held)] = held
    return tables


def _wanted_logits(
    plan: StepPlan, cu_seqlens: np.ndarray
) -> tuple[list[int], list[Choice], list[int], list[PromptRows]]:
    logit_rows: list[int] = []
    sampled: list[Choice] = []
    sample_rows: list[int] = []
    scored: list[PromptRows] = []
    for chunk, first, end in zip(plan.chunks, cu_seqlens[:-1].tolist(), cu_seqlens[1:].tolist(), strict=True):
        spec = chunk.choice.request.spec
        if spec.params.prompt_logprobs is not None and chunk.choice.index == 0:
            # The logits at position p predict the token at p + 1.
            count = min(chunk.start + chunk.length, len(spec.prompt_token_ids) - 1) - chunk.start
            if count > 0:
                scored.append(PromptRows(chunk.choice, len(logit_rows), chunk.start + 1, count))
                logit_rows.extend(range(first, first + count))
        if chunk.samples:
            sampled.append(chunk.choice)
            sample_rows.append(len(logit_rows))
            logit_rows.append(end - 1)
    return logit_rows, sampled, sample_rows, scored


def _tensor(array: np.ndarray, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(array).to(device)
