"""Every kernel configuration that is shipped, as launches over tensors without storage."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from weir_kernels.activation import gated_launch
from weir_kernels.attention import FLOAT8, plan_launches
from weir_kernels.cache import write_kv_launch
from weir_kernels.launch import Launch
from weir_kernels.norm import rms_norm_launch
from weir_kernels.qkv import norm_rope_write_kv_launch
from weir_kernels.ragged import RaggedBatch
from weir_kernels.rope import rope_launch
from weir_kernels.sampling import penalise_launch, sample_launch
from weir_kernels.tuning import Chip

HEAD_DIMS = (64, 80, 96, 128, 256)
BLOCK_SIZES = (16, 32, 64)
NUM_KV_HEADS = 8
PROCESSORS = {"sm_80": 108, "sm_90": 132, "sm_100": 148, "gfx942": 304}


@dataclass(frozen=True, slots=True)
class Variant:
    """name: the kernel and what was compiled into it; the key of its bounds."""

    name: str
    launch: Launch


def attention_variants(
    arch: str,
    head_dim: int,
    block_size: int,
    *,
    dtype: torch.dtype = torch.bfloat16,
    cache_dtype: torch.dtype | None = None,
    group: int = 4,
    features: bool = False,
) -> Iterator[Variant]:
    """Decode, merge and prefill of one cache layout. features: with sliding window, soft cap and sinks at once."""
    stored = cache_dtype or dtype
    q = _empty((8, NUM_KV_HEADS * group, head_dim), dtype)
    cache = _empty((64, block_size, NUM_KV_HEADS, head_dim), stored)
    launches = plan_launches(
        torch.empty_like(q),
        q,
        cache,
        torch.empty_like(cache),
        mixed_batch(num_decodes=4, tokens=8, table_width=1024),
        head_dim**-0.5,
        4096 if features else None,
        soft_cap=30.0 if features else None,
        sinks=_empty((NUM_KV_HEADS * group,), torch.float32) if features else None,
        k_scale=1.0,
        v_scale=1.0,
        split_tokens=None,
        chip=Chip(arch, PROCESSORS[arch]),
    )
    options = f"head {head_dim}, block {block_size}, group {group}, {_short(dtype)}, cache {_short(stored)}"
    if features:
        options += ", window, soft cap, sinks"
    for launch in launches:
        yield Variant(f"{launch.kernel.fn.__name__} ({options})", launch)


def other_variants(dtype: torch.dtype = torch.bfloat16) -> Iterator[Variant]:
    """Norm, activation, rotary embedding, cache write and sampling at the sizes of an 8B model."""
    hidden, head_dim, kind = 4096, 128, _short(dtype)
    x, weight = _empty((8, hidden), dtype), _empty((hidden,), dtype)
    yield Variant(f"rms_norm_kernel ({hidden}, {kind})", rms_norm_launch(x, x, weight, 1e-5))
    yield Variant(f"rms_norm_kernel ({hidden}, {kind}, residual)", rms_norm_launch(x, x, weight, 1e-5, x, x))
    gate_up = _empty((8, 28672), dtype)
    for gelu in (False, True):
        name = f"gated_kernel ({kind}, {'gelu' if gelu else 'silu'})"
        yield Variant(name, gated_launch(_empty((8, 14336), dtype), gate_up, gelu))
    q, k = _empty((8, 32, head_dim), dtype), _empty((8, NUM_KV_HEADS, head_dim), dtype)
    cos = _empty((4096, head_dim // 2), torch.float32)
    tokens = _empty((8,), torch.int64)
    yield Variant(f"rope_kernel (head {head_dim}, {kind})", rope_launch(q, k, q, k, cos, cos, tokens))
    norm = _empty((head_dim,), dtype)
    for stored in (dtype, FLOAT8):
        cache = _empty((64, 16, NUM_KV_HEADS, head_dim), stored)
        options = f"head {head_dim}, {kind}, cache {_short(stored)}"
        yield Variant(f"write_kv_kernel ({options})", write_kv_launch(k, k, cache, cache, tokens, 1.0, 1.0))
        for weights in (None, norm):
            fused = norm_rope_write_kv_launch(
                q, q, k, k, weights, weights, 1e-6, cos, cos, tokens, cache, cache, tokens, 1.0, 1.0
            )
            name = f"norm_rope_write_kv_kernel ({options}{'' if weights is None else ', QK-norm'})"
            yield Variant(name, fused)
    logits, values = _empty((8, 128256), torch.float32), _empty((8,), torch.float32)
    top_k, starts = _empty((8,), torch.int32), _empty((9,), torch.int32)
    yield Variant(
        "sample_kernel (vocabulary 128256)",
        sample_launch(tokens, logits, values, top_k, values.double(), values, values.double()),
    )
    seen, counts = _empty((64,), torch.int64), _empty((64,), torch.float32)
    yield Variant("penalise_kernel", penalise_launch(logits, starts, seen, counts, values, values, values))


def shipped(arch: str) -> Iterator[Variant]:
    """All variants that a chip of this architecture may run."""
    for head_dim in HEAD_DIMS:
        for block_size in BLOCK_SIZES:
            yield from attention_variants(arch, head_dim, block_size)
        if arch != "sm_80":
            yield from attention_variants(arch, head_dim, 16, cache_dtype=FLOAT8)
        yield from attention_variants(arch, head_dim, 16, features=True)
    yield from attention_variants(arch, 128, 16, dtype=torch.float16)
    for group in (1, 5, 16, 32):
        yield from attention_variants(arch, 128, 16, group=group)
    for variant in other_variants():
        if arch != "sm_80" or "float8" not in variant.name:
            yield variant


def mixed_batch(num_decodes: int, tokens: int, table_width: int) -> RaggedBatch:
    """num_decodes decode rows and, where tokens are left, one prefill chunk; no tensor has storage."""
    rows = num_decodes + (tokens > num_decodes)
    return RaggedBatch(
        token_ids=_empty((tokens,), torch.int64),
        positions=_empty((tokens,), torch.int64),
        slot_mapping=_empty((tokens,), torch.int64),
        cu_seqlens=_empty((rows + 1,), torch.int32),
        seq_lens=_empty((rows,), torch.int32),
        block_tables=_empty((rows, table_width), torch.int32),
        logit_rows=_empty((rows,), torch.int64),
        num_decodes=num_decodes,
        max_query_len=max(1, tokens - num_decodes),
        max_seq_len=table_width * 16,
    )


def _empty(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
