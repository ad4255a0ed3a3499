"""Attention in float64, one sequence at a time, written from the definition; and batches to try it on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from weir_kernels.ragged import RaggedBatch


@dataclass(frozen=True)
class Problem:
    """Queries and a paged cache in which every slot that no sequence owns is NaN."""

    q: torch.Tensor
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    batch: RaggedBatch


def ragged_batch(lengths: Sequence[tuple[int, int]], block_size: int, tables: torch.Tensor) -> RaggedBatch:
    """lengths: (query tokens, KV tokens) a sequence; a leading run with at most one query token are the decodes."""
    query_lens = [query for query, _ in lengths]
    num_decodes = next((i for i, query in enumerate(query_lens) if query != 1), len(query_lens))
    positions = [kv - query + i for query, kv in lengths for i in range(query)]
    cu_seqlens = torch.tensor([0, *torch.tensor(query_lens).cumsum(0).tolist()], dtype=torch.int32)
    slots = [
        int(tables[s, position // block_size]) * block_size + position % block_size if kv else -1
        for s, (query, kv) in enumerate(lengths)
        for position in range(kv - query, kv)
    ]
    total = sum(query_lens)
    return RaggedBatch(
        token_ids=torch.zeros(total, dtype=torch.int64),
        positions=torch.tensor(positions, dtype=torch.int64).clamp(min=0),
        slot_mapping=torch.tensor(slots, dtype=torch.int64),
        cu_seqlens=cu_seqlens,
        seq_lens=torch.tensor([kv for _, kv in lengths], dtype=torch.int32),
        block_tables=tables,
        logit_rows=(cu_seqlens[1:] - 1).long(),
        num_decodes=num_decodes,
        max_query_len=max(query_lens),
        max_seq_len=max(kv for _, kv in lengths),
    )


def make_problem(
    lengths: Sequence[tuple[int, int]],
    *,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    block_size: int,
    dtype: torch.dtype = torch.float32,
    cache_dtype: torch.dtype | None = None,
    owned_from: Sequence[int] | None = None,
    spread: float = 1.0,
    seed: int = 0,
) -> Problem:
    """Random queries and cache, blocks handed out in random order; block 0 is the null block and NaN as well.

    owned_from: the first position of each sequence whose key and value still exist (what a window has passed may be
    overwritten). spread: standard deviation of the queries.
    """
    generator = torch.Generator().manual_seed(seed)
    counts = [math.ceil(kv / block_size) for _, kv in lengths]
    order = torch.randperm(sum(counts), generator=generator) + 1
    tables = torch.zeros(len(lengths), max([*counts, 1]) + 1, dtype=torch.int32)
    shape = (sum(counts) + 1, block_size, num_kv_heads, head_dim)
    k_cache = torch.full(shape, float("nan"))
    v_cache = torch.full(shape, float("nan"))
    taken = 0
    for s, (_, kv) in enumerate(lengths):
        tables[s, : counts[s]] = order[taken : taken + counts[s]]
        taken += counts[s]
        for position in range(owned_from[s] if owned_from else 0, kv):
            block = int(tables[s, position // block_size])
            k_cache[block, position % block_size] = torch.randn(num_kv_heads, head_dim, generator=generator)
            v_cache[block, position % block_size] = torch.randn(num_kv_heads, head_dim, generator=generator)
    tokens = sum(query for query, _ in lengths)
    q = (torch.randn(tokens, num_heads, head_dim, generator=generator) * spread).to(dtype)
    stored = cache_dtype or dtype
    return Problem(q, k_cache.to(stored), v_cache.to(stored), ragged_batch(lengths, block_size, tables))


def attention_float64(
    problem: Problem,
    scale: float,
    *,
    window: int | None = None,
    soft_cap: float | None = None,
    sinks: torch.Tensor | None = None,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
) -> torch.Tensor:
    """[T, num_heads, head_dim] float64; reads only the keys and values a token may see."""
    batch = problem.batch
    block_size, num_kv_heads = problem.k_cache.shape[1:3]
    out = torch.zeros(problem.q.shape, dtype=torch.float64)
    group = problem.q.shape[1] // num_kv_heads
    for s, seq_len in enumerate(batch.seq_lens.tolist()):
        begin, end = batch.cu_seqlens[s : s + 2].tolist()
        for token in range(begin, end):
            last = seq_len - (end - token)
            first = max(0, last - window + 1) if window else 0
            if last < first:
                continue
            seen = torch.arange(first, last + 1)
            blocks = batch.block_tables[s, seen // block_size].long()
            keys = problem.k_cache[blocks, seen % block_size].double() * k_scale
            values = problem.v_cache[blocks, seen % block_size].double() * v_scale
            query = problem.q[token].double().view(num_kv_heads, group, -1)
            scores = torch.einsum("hgd,khd->hgk", query, keys) * scale
            if soft_cap:
                scores = soft_cap * torch.tanh(scores / soft_cap)
            if sinks is not None:
                scores = torch.cat([scores, sinks.double().view(num_kv_heads, group, 1)], dim=2)
            weights = torch.softmax(scores, dim=2)[:, :, : len(seen)]
            out[token] = torch.einsum("hgk,khd->hgd", weights, values).reshape(out.shape[1:])
    return out
