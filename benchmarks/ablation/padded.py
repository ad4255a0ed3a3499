"""A padded batch, as engines had it before ragged ones: a rectangle of rows, computed by the engine's own decoder.

A row is a stretch of KV cache that is its own. Padding stands behind the row's real tokens, so causal attention keeps
it out of them, and what padding writes into the cache is overwritten before a real token looks at it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from weir.models.build import build_decoder
from weir.models.cpu_decoder import CpuDecoder
from weir.models.decoder import Decoder
from weir_kernels.ragged import RaggedBatch

BLOCK_SIZE = 32


@dataclass(slots=True)
class Row:
    """A request in a row. done: tokens in the KV cache. end: prompt + max_tokens. An empty row has no tokens."""

    number: int = -1
    tokens: list[int] = field(default_factory=list)
    done: int = 0
    end: int = 0

    @property
    def pending(self) -> int:
        """Tokens that are not in the cache yet."""
        return len(self.tokens) - self.done

    @property
    def live(self) -> bool:
        """Whether the request still wants tokens."""
        return len(self.tokens) < self.end


class PaddedModel:
    """A decoder and `rows` stretches of KV cache of at least `row_tokens` each; counts what it computes."""

    def __init__(self, model: str, rows: int, row_tokens: int) -> None:
        self._blocks = -(-row_tokens // BLOCK_SIZE)
        self._likeliest = _arg_max(build_decoder(model), rows * self._blocks)
        self.computed_tokens = 0
        self.padding_tokens = 0

    def step(self, rows: Sequence[Row | None], indices: Sequence[int], width: int) -> list[int]:
        """Compute `width` tokens in each of the rows that `indices` names: pending ones, then padding.

        rows: what stands in each row; None, and a row that wants no more tokens, is padding altogether. Advances
        `done`, and returns the likeliest token behind the last real one of each row (0 for a row of padding).
        """
        token_ids, starts, last = [], [], []
        for place, row in enumerate(rows):
            real = row.tokens[row.done : row.done + width] if row is not None and row.live else []
            token_ids += real + [0] * (width - len(real))
            starts.append(0 if row is None else min(row.done, self._blocks * BLOCK_SIZE - width))
            last.append(place * width + max(len(real), 1) - 1)
            self.computed_tokens += width
            self.padding_tokens += width - len(real)
            if row is not None:
                row.done += len(real)
        batch = _rectangle(token_ids, starts, indices, width, last, self._blocks)
        return [int(token) for token in self._likeliest(batch)]


def _arg_max(decoder: Decoder | CpuDecoder, num_blocks: int) -> Callable[[RaggedBatch], torch.Tensor]:
    """The likeliest token of each logit row of a batch, over a KV cache that stays."""
    if isinstance(decoder, CpuDecoder):
        fused, fused_kv = decoder, decoder.allocate_kv(num_blocks, BLOCK_SIZE)
        return lambda batch: fused.greedy(batch, fused_kv)
    plain, kv = decoder, decoder.allocate_kv(num_blocks, BLOCK_SIZE)
    return lambda batch: plain.forward(batch, kv).argmax(dim=-1)


def _rectangle(
    token_ids: Sequence[int],
    starts: Sequence[int],
    indices: Sequence[int],
    width: int,
    last: Sequence[int],
    blocks: int,
) -> RaggedBatch:
    count = len(starts)
    first = torch.tensor(starts)
    positions = (first.unsqueeze(1) + torch.arange(width)).flatten()
    tables = torch.tensor(indices, dtype=torch.int32).unsqueeze(1) * blocks + torch.arange(1, blocks + 1)
    owners = torch.arange(count).repeat_interleave(width)
    slots = tables[owners, positions // BLOCK_SIZE].long() * BLOCK_SIZE + positions % BLOCK_SIZE
    lengths = (first + width).to(torch.int32)
    return RaggedBatch(
        token_ids=torch.tensor(token_ids),
        positions=positions,
        slot_mapping=slots,
        cu_seqlens=torch.arange(0, (count + 1) * width, width, dtype=torch.int32),
        seq_lens=lengths,
        block_tables=tables.to(torch.int32),
        logit_rows=torch.tensor(last),
        num_decodes=count if width == 1 else 0,
        max_query_len=width,
        max_seq_len=int(lengths.max()),
    )
