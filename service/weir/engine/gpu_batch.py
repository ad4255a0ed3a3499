"""A step plan written into staging arrays: every planned token once, behind them the padding of a recorded step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from weir_kernels.ragged import RaggedBatch

from weir.engine.gpu_staging import Shape
from weir.engine.plan import Chunk, StepPlan
from weir.engine.request import Choice

Arrays = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True)
class StepShape:
    """The largest step: tokens, rows (choices), and blocks of one choice."""

    max_tokens: int
    max_rows: int
    max_blocks: int
    block_size: int

    def fields(self) -> dict[str, tuple[Shape, torch.dtype]]:
        """What a step uploads: the ragged batch, where fed tokens come from, and how each row is sampled."""
        tokens, rows = (self.max_tokens,), (self.max_rows,)
        return {
            "token_ids": (tokens, torch.int64),
            "positions": (tokens, torch.int64),
            "slot_mapping": (tokens, torch.int64),
            "logit_rows": (rows, torch.int64),
            "feed": (rows, torch.int64),
            "u": (rows, torch.float64),
            "top_p": (rows, torch.float64),
            "temperature": (rows, torch.float32),
            "min_p": (rows, torch.float32),
            "top_k": (rows, torch.int32),
            "seq_lens": (rows, torch.int32),
            "cu_seqlens": ((self.max_rows + 1,), torch.int32),
            "block_tables": ((self.max_rows, self.max_blocks), torch.int32),
        }


def write_step(
    plan: StepPlan, rows: int, shape: StepShape, arrays: Arrays, last_rows: Mapping[int, int]
) -> tuple[Choice, ...]:
    """Fill the arrays for `rows` rows, of which those after the plan's chunks are padding that touches nothing.

    last_rows: by id of a choice, its row among the tokens sampled by the step before; a choice whose token is still
    on the device is fed from there. Returns the choices that sample, in the order of the rows of logits.
    """
    chunks = plan.chunks
    padding = rows - len(chunks)
    cu_seqlens, seq_lens, tables = arrays["cu_seqlens"], arrays["seq_lens"], arrays["block_tables"]
    lengths = np.array([chunk.length for chunk in chunks] + [1] * padding, dtype=np.int32)
    cu_seqlens[0] = 0
    np.cumsum(lengths, out=cu_seqlens[1 : rows + 1])
    seq_lens[:rows] = [chunk.start + chunk.length for chunk in chunks] + [0] * padding
    tables[:rows] = 0
    for row, chunk in enumerate(chunks):
        tables[row, : len(chunk.choice.blocks)] = chunk.choice.blocks
        _write_tokens(chunk, int(cu_seqlens[row]), tables[row], shape.block_size, arrays)
    end = int(cu_seqlens[len(chunks)])
    arrays["token_ids"][end : end + padding] = 0
    arrays["positions"][end : end + padding] = 0
    arrays["slot_mapping"][end : end + padding] = -1

    feed = arrays["feed"]
    feed[:rows] = -1
    for row, chunk in enumerate(chunks[: plan.num_single]):
        if chunk.start >= len(chunk.choice.tokens):
            feed[row] = last_rows[id(chunk.choice)]
    return _write_sampling(chunks, cu_seqlens, arrays)


def ragged_batch(
    tensors: Mapping[str, torch.Tensor], tokens: int, rows: int, num_decodes: int, num_logits: int, shape: StepShape
) -> RaggedBatch:
    """The uploaded step as the model takes it; the bounds on lengths are those of any step of this shape."""
    return RaggedBatch(
        token_ids=tensors["token_ids"][:tokens],
        positions=tensors["positions"][:tokens],
        slot_mapping=tensors["slot_mapping"][:tokens],
        cu_seqlens=tensors["cu_seqlens"][: rows + 1],
        seq_lens=tensors["seq_lens"][:rows],
        block_tables=tensors["block_tables"][:rows],
        logit_rows=tensors["logit_rows"][:num_logits],
        num_decodes=num_decodes,
        max_query_len=max(1, tokens - num_decodes),
        max_seq_len=shape.max_blocks * shape.block_size,
    )


def _write_tokens(chunk: Chunk, offset: int, table: npt.NDArray[Any], block_size: int, arrays: Arrays) -> None:
    positions = np.arange(chunk.start, chunk.start + chunk.length)
    here = slice(offset, offset + chunk.length)
    known = chunk.choice.tokens[chunk.start : chunk.start + chunk.length]
    arrays["token_ids"][here] = known or 0  # a token that is still on the device is fed in there
    arrays["positions"][here] = positions
    arrays["slot_mapping"][here] = table[positions // block_size].astype(np.int64) * block_size + positions % block_size


def _write_sampling(chunks: Sequence[Chunk], cu_seqlens: npt.NDArray[Any], arrays: Arrays) -> tuple[Choice, ...]:
    sampled = [(row, chunk) for row, chunk in enumerate(chunks) if chunk.samples]
    for name in ("temperature", "min_p", "top_k", "u"):
        arrays[name][:] = 0
    arrays["top_p"][:] = 1
    arrays["logit_rows"][:] = 0
    for place, (row, chunk) in enumerate(sampled):
        state, params = chunk.choice.sampling, chunk.choice.request.spec.params
        arrays["logit_rows"][place] = cu_seqlens[row + 1] - 1
        if not state.greedy:
            arrays["temperature"][place] = params.temperature
            arrays["top_k"][place] = params.top_k
            arrays["top_p"][place] = params.top_p
            arrays["min_p"][place] = params.min_p
            arrays["u"][place] = state.random(chunk.start + chunk.length)
    return tuple(chunk.choice for _, chunk in sampled)
