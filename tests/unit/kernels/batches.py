"""Ragged batches over a paged cache in which every slot that no sequence owns is NaN."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from weir_kernels.ragged import RaggedBatch


@dataclass(frozen=True)
class PagedCase:
    """keys and values hold, for each sequence, what the cache holds of it: [kv_len, Hkv, D]."""

    batch: RaggedBatch
    q: torch.Tensor
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    keys: list[torch.Tensor]
    values: list[torch.Tensor]


def paged_case(
    sequences: Sequence[tuple[int, int]],
    *,
    heads: tuple[int, int] = (6, 2),
    head_dim: int = 16,
    block_size: int = 4,
    dtype: torch.dtype = torch.float32,
) -> PagedCase:
    """sequences: (query tokens, KV tokens) of each, decodes first; heads: (query, KV). Blocks lie in random order."""
    generator = torch.Generator().manual_seed(7)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(dtype)

    needed = [-(-kv_len // block_size) for _, kv_len in sequences]
    free = (torch.randperm(sum(needed), generator=generator) + 1).tolist()
    tables = torch.zeros(len(sequences), max(needed, default=0) + 2, dtype=torch.int32)
    shape = (sum(needed) + 1, block_size, heads[1], head_dim)
    caches = [torch.full(shape, float("nan"), dtype=dtype) for _ in range(2)]
    keys, values = ([random(kv_len, heads[1], head_dim) for _, kv_len in sequences] for _ in range(2))
    for row, (_, kv_len) in enumerate(sequences):
        blocks = [free.pop() for _ in range(needed[row])]
        tables[row, : len(blocks)] = torch.tensor(blocks, dtype=torch.int32)
        for position in range(kv_len):
            slot = (blocks[position // block_size], position % block_size)
            caches[0][slot], caches[1][slot] = keys[row][position], values[row][position]
    counts = [count for count, _ in sequences]
    tokens = torch.zeros(sum(counts), dtype=torch.int64)
    batch = RaggedBatch(
        token_ids=tokens,
        positions=tokens,
        slot_mapping=tokens,
        cu_seqlens=torch.tensor([0, *counts]).cumsum(0).to(torch.int32),
        seq_lens=torch.tensor([kv_len for _, kv_len in sequences], dtype=torch.int32),
        block_tables=tables,
        logit_rows=tokens,
        num_decodes=next((i for i, count in enumerate(counts) if count != 1), len(counts)),
        max_query_len=max(counts),
        max_seq_len=max(kv_len for _, kv_len in sequences),
    )
    return PagedCase(batch, random(sum(counts), heads[0], head_dim), *caches, keys, values)
