"""Attention problems to measure: a decode batch or a prompt over a paged cache whose blocks lie in random order."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from weir_kernels.ragged import RaggedBatch


@dataclass(frozen=True, slots=True)
class Problem:
    """Arguments of attention. kv_bytes: what a decode must read at least; flops: what a causal prompt must compute."""

    q: torch.Tensor
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    batch: RaggedBatch
    kv_bytes: int
    flops: int


@dataclass(frozen=True, slots=True)
class Layout:
    """Sizes of a layer's attention. dtype: of the queries; cache_dtype: of keys and values."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    dtype: torch.dtype
    cache_dtype: torch.dtype


def decode_problem(layout: Layout, rows: int, context: int, device: torch.device) -> Problem:
    """`rows` sequences of `context` tokens, one query each."""
    return _problem(layout, [(1, context)] * rows, device)


def prefill_problem(layout: Layout, tokens: int, context: int, device: torch.device) -> Problem:
    """One chunk of `tokens` queries after `context` tokens."""
    return _problem(layout, [(tokens, context + tokens)], device)


def _problem(layout: Layout, lengths: list[tuple[int, int]], device: torch.device) -> Problem:
    block_size, num_kv_heads, head_dim = layout.block_size, layout.num_kv_heads, layout.head_dim
    generator = torch.Generator(device="cpu").manual_seed(0)
    counts = [-(-kv // block_size) for _, kv in lengths]
    order = (torch.randperm(sum(counts), generator=generator) + 1).int()
    tables = torch.zeros(len(lengths), max(counts), dtype=torch.int32)
    taken = 0
    for row, count in enumerate(counts):
        tables[row, :count] = order[taken : taken + count]
        taken += count
    queries = torch.tensor([query for query, _ in lengths])
    tokens = int(queries.sum())
    cu_seqlens = torch.zeros(len(lengths) + 1, dtype=torch.int32)
    cu_seqlens[1:] = queries.cumsum(0)
    indices = torch.arange(tokens, device=device)
    batch = RaggedBatch(
        token_ids=indices,
        positions=indices,
        slot_mapping=indices,
        cu_seqlens=cu_seqlens.to(device),
        seq_lens=torch.tensor([kv for _, kv in lengths], dtype=torch.int32).to(device),
        block_tables=tables.to(device),
        logit_rows=cu_seqlens[1:].long().to(device) - 1,
        num_decodes=len(lengths) if int(queries.max()) == 1 else 0,
        max_query_len=int(queries.max()),
        max_seq_len=max(kv for _, kv in lengths),
    )
    shape = (sum(counts) + 1, block_size, num_kv_heads, head_dim)
    k_cache = torch.randn(shape, dtype=layout.dtype, device=device).to(layout.cache_dtype)
    v_cache = torch.randn(shape, dtype=layout.dtype, device=device).to(layout.cache_dtype)
    q = torch.randn(tokens, layout.num_heads, head_dim, dtype=layout.dtype, device=device)
    cached = sum(kv for _, kv in lengths)
    scores = sum(query * kv - query * (query - 1) // 2 for query, kv in lengths)
    return Problem(
        q=q,
        k_cache=k_cache,
        v_cache=v_cache,
        batch=batch,
        kv_bytes=2 * cached * num_kv_heads * head_dim * layout.cache_dtype.itemsize,
        flops=4 * scores * layout.num_heads * head_dim,
    )
