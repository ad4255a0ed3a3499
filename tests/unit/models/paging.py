"""Feeds sequences to a decoder in ragged batches, with scattered blocks and poisoned slots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from weir.models.decoder import Decoder
from weir_kernels.ragged import RaggedBatch


class PagedSequences:
    """Several token sequences over one KV cache, advanced together; collects the logits of their tokens.

    Blocks are handed out in a shuffled order and every slot starts as NaN, the null block's too, so that reading a
    slot that was not written by its own sequence shows.
    """

    def __init__(
        self, decoder: Decoder, sequences: Sequence[Sequence[int]], block_size: int = 4, first_wanted: int = 0
    ) -> None:
        """first_wanted: position from which logits are asked for."""
        self._decoder = decoder
        self._sequences = sequences
        self._block_size = block_size
        self._first_wanted = first_wanted
        needed = [-(-len(tokens) // block_size) for tokens in sequences]
        self._kv = decoder.allocate_kv(sum(needed), block_size)
        for layer in (*self._kv.keys, *self._kv.values):
            layer.fill_(float("nan"))
        shuffled = (torch.randperm(sum(needed), generator=torch.Generator().manual_seed(1)) + 1).tolist()
        self._tables = [[shuffled.pop() for _ in range(count)] for count in needed]
        self.computed = [0] * len(sequences)
        self.logits: list[list[torch.Tensor]] = [[] for _ in sequences]

    def step(self, counts: Mapping[int, int]) -> None:
        """Compute the next `counts[i]` tokens of each sequence i named, in one batch."""
        order = sorted(counts, key=lambda index: counts[index] != 1)
        ranges = [(i, self.computed[i], self.computed[i] + counts[i]) for i in order]
        batch = self._batch(ranges)
        wanted = [max(0, stop - max(start, self._first_wanted)) for _, start, stop in ranges]
        rows = self._decoder.forward(batch, self._kv).split(wanted)
        for (index, _, stop), logits in zip(ranges, rows, strict=True):
            self.logits[index].append(logits)
            self.computed[index] = stop

    def all_logits(self, index: int) -> torch.Tensor:
        """[wanted tokens so far, V] of one sequence."""
        return torch.cat(self.logits[index])

    def _batch(self, ranges: Sequence[tuple[int, int, int]]) -> RaggedBatch:
        lengths = torch.tensor([stop - start for _, start, stop in ranges])
        tables = torch.zeros(len(ranges), max(map(len, self._tables)) + 1, dtype=torch.int32)
        for row, (index, _, _) in enumerate(ranges):
            tables[row, : len(self._tables[index])] = torch.tensor(self._tables[index])
        flat = [(index, position) for index, start, stop in ranges for position in range(start, stop)]
        return RaggedBatch(
            token_ids=torch.tensor([self._sequences[index][position] for index, position in flat]),
            positions=torch.tensor([position for _, position in flat]),
            slot_mapping=torch.tensor([self._slot(index, position) for index, position in flat]),
            cu_seqlens=torch.cat((torch.zeros(1), lengths.cumsum(0))).to(torch.int32),
            seq_lens=torch.tensor([stop for _, _, stop in ranges], dtype=torch.int32),
            block_tables=tables,
            logit_rows=torch.tensor(
                [row for row, (_, position) in enumerate(flat) if position >= self._first_wanted], dtype=torch.int64
            ),
            num_decodes=int((lengths == 1).sum()),
            max_query_len=int(lengths.max()),
            max_seq_len=max(stop for _, _, stop in ranges),
        )

    def _slot(self, index: int, position: int) -> int:
        return self._tables[index][position // self._block_size] * self._block_size + position % self._block_size
