"""Feeds sequences to a decoder in ragged batches, with scattered blocks and every slot poisoned beforehand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from weir_kernels.ragged import RaggedBatch

Steps = Iterable[Mapping[int, int]]


class Feeder:
    """Several token sequences over one KV cache of a decoder; keeps the logits of every token.

    The decoder is a `CpuDecoder` or a `Decoder`. Every slot starts as NaN, the null block's too.
    """

    def __init__(self, decoder: Any, sequences: Sequence[Sequence[int]], block_size: int) -> None:
        self.decoder = decoder
        self.sequences = sequences
        self.block_size = block_size
        needed = [-(-len(tokens) // block_size) for tokens in sequences]
        self.kv = decoder.allocate_kv(sum(needed), block_size)
        for tensor in (self.kv.data,) if hasattr(self.kv, "data") else (*self.kv.keys, *self.kv.values):
            tensor.fill_(float("nan"))
        shuffled = (torch.randperm(sum(needed), generator=torch.Generator().manual_seed(1)) + 1).tolist()
        self.tables = [[shuffled.pop() for _ in range(count)] for count in needed]
        self.computed = [0] * len(sequences)
        self.rows: list[list[torch.Tensor]] = [[] for _ in sequences]

    def step(self, counts: Mapping[int, int]) -> None:
        """Compute the next `counts[i]` tokens of each sequence i named, in one batch, single tokens first."""
        order = sorted(counts, key=lambda index: counts[index] != 1)
        ranges = [(i, self.computed[i], self.computed[i] + counts[i]) for i in order]
        logits = self.decoder.forward(self.batch(ranges), self.kv).clone()  # its memory is the decoder's
        parts = logits.split([stop - start for _, start, stop in ranges])
        for (index, _, stop), rows in zip(ranges, parts, strict=True):
            self.rows[index].append(rows)
            self.computed[index] = stop

    def batch(self, ranges: Sequence[tuple[int, int, int]]) -> RaggedBatch:
        """The batch of tokens start..stop of each (sequence, start, stop), logits wanted for all of them."""
        lengths = torch.tensor([stop - start for _, start, stop in ranges])
        tables = torch.zeros(len(ranges), max(map(len, self.tables)) + 1, dtype=torch.int32)
        for row, (index, _, _) in enumerate(ranges):
            tables[row, : len(self.tables[index])] = torch.tensor(self.tables[index])
        flat = [(index, position) for index, start, stop in ranges for position in range(start, stop)]
        return RaggedBatch(
            token_ids=torch.tensor([self.sequences[index][position] for index, position in flat]),
            positions=torch.tensor([position for _, position in flat]),
            slot_mapping=torch.tensor([self._slot(index, position) for index, position in flat]),
            cu_seqlens=torch.cat((torch.zeros(1), lengths.cumsum(0))).to(torch.int32),
            seq_lens=torch.tensor([stop for _, _, stop in ranges], dtype=torch.int32),
            block_tables=tables,
            logit_rows=torch.arange(len(flat)),
            num_decodes=int((lengths == 1).sum()),
            max_query_len=int(lengths.max()),
            max_seq_len=max(stop for _, _, stop in ranges),
        )

    def _slot(self, index: int, position: int) -> int:
        return self.tables[index][position // self.block_size] * self.block_size + position % self.block_size


def logits_of(
    decoder: Any, sequences: Sequence[Sequence[int]], steps: Steps | None = None, block_size: int = 16
) -> list[torch.Tensor]:
    """[tokens, V] for each sequence after the steps; by default every sequence whole, in one batch."""
    feeder = Feeder(decoder, sequences, block_size)
    for counts in steps or ({index: len(tokens) for index, tokens in enumerate(sequences)},):
        feeder.step(counts)
    assert feeder.computed == [len(tokens) for tokens in sequences]
    return [torch.cat(rows) for rows in feeder.rows]


def in_chunks(length: int, chunk: int) -> Steps:
    """The steps that compute one sequence in chunks."""
    return [{0: min(chunk, length - start)} for start in range(0, length, chunk)]
