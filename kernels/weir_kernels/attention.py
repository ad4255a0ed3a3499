"""Ragged paged attention for any mix of decode rows and prefill chunks: checks, launch parameters, launches."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import triton

from weir_kernels.attention_decode import decode_kernel, merge_kernel
from weir_kernels.attention_prefill import prefill_kernel
from weir_kernels.checks import require
from weir_kernels.launch import Launch
from weir_kernels.ragged import RaggedBatch
from weir_kernels.tuning import Chip, Regime, TileConfig, chip_of, tile_config

LOG2E = math.log2(math.e)
MIN_BLOCK_SIZE = 16
# A matrix instruction multiplies at least this deep; MAX_HEAD_DIM is what the committed tables fit in shared memory.
MIN_BLOCK_D = 16
MAX_HEAD_DIM = 256
MAX_GROUP = 32
SPLITS_AT_ONCE = 32
FLOAT8 = torch.float8_e4m3fn


def paged_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    batch: RaggedBatch,
    scale: float,
    sliding_window: int | None = None,
    *,
    soft_cap: float | None = None,
    sinks: torch.Tensor | None = None,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
    split_tokens: int | None = None,
) -> torch.Tensor:
    """Attention of every token of the batch to its own sequence's cached keys and values, causal.

    q: [T, num_heads, head_dim] float16, bfloat16 or float32; any token and head stride, unit last stride.
    k_cache, v_cache: [num_blocks, block_size, num_kv_heads, head_dim], q's dtype or float8_e4m3fn, equal strides,
        unit last stride. The batch's own keys and values are already written. Slots no sequence of the batch owns are
        never read, so they may hold anything.
    scale: factor of the scores before soft_cap, > 0. sliding_window: keys a token sees, itself included.
    soft_cap: c * tanh(score / c). sinks: [num_heads] float32, one logit per head that takes mass and adds no value.
    k_scale, v_scale: what a stored key or value is multiplied by (float8 caches).
    split_tokens: cut the keys of decode rows in pieces of exactly this many tokens, so that a row's result does not
        depend on the rest of the batch; None lets lengths and processors decide.

    Returns [T, num_heads, head_dim], q's dtype, contiguous; zeros for a token that sees no key.
    Raises ValueError naming the argument, what it is and what is allowed.
    """
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    launches = plan_launches(
        out,
        q,
        k_cache,
        v_cache,
        batch,
        scale,
        sliding_window,
        soft_cap=soft_cap,
        sinks=sinks,
        k_scale=k_scale,
        v_scale=v_scale,
        split_tokens=split_tokens,
        chip=chip_of(q.device),
    )
    for launch in launches:
        launch.run()
    return out


def plan_launches(
    out: torch.Tensor,
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    batch: RaggedBatch,
    scale: float,
    sliding_window: int | None,
    *,
    soft_cap: float | None,
    sinks: torch.Tensor | None,
    k_scale: float,
    v_scale: float,
    split_tokens: int | None,
    chip: Chip,
    configs: Mapping[Regime, TileConfig] | None = None,
) -> list[Launch]:
    """The launches of `paged_attention` on a chip: decode and merge, prefill, or all three.

    configs: launch parameters other than those of the chip's table.

    Nothing here depends on a sequence length, so a captured graph replays with other lengths.
    """
    _check(q, k_cache, v_cache, batch, scale, sliding_window, soft_cap, sinks, split_tokens, chip)
    num_tokens, num_heads, head_dim = q.shape
    block_size, num_kv_heads = k_cache.shape[1:3]
    group = num_heads // num_kv_heads
    block_d = max(MIN_BLOCK_D, triton.next_power_of_2(head_dim))
    qk_scale = scale * k_scale
    shared = {
        "out_ptr": out,
        "q_ptr": q,
        "k_ptr": k_cache,
        "v_ptr": v_cache,
        "table_ptr": batch.block_tables,
        "seq_lens_ptr": batch.seq_lens,
        "sinks_ptr": sinks,
        "qk_scale": float(qk_scale),
        "qk_log2_scale": LOG2E if soft_cap else float(qk_scale * LOG2E),
        "soft_cap": float(soft_cap or 0.0),
        "v_scale": float(v_scale),
        "window": sliding_window or 0,
        "stride_table": batch.block_tables.stride(0),
        "stride_q_token": q.stride(0),
        "stride_q_head": q.stride(1),
        "stride_block": k_cache.stride(0),
        "stride_slot": k_cache.stride(1),
        "stride_kv_head": k_cache.stride(2),
        "NUM_HEADS": num_heads,
        "GROUP": group,
        "HEAD_DIM": head_dim,
        "BLOCK_D": block_d,
        "BLOCK_SIZE": block_size,
        "HAS_WINDOW": sliding_window is not None,
        "HAS_SOFT_CAP": soft_cap is not None,
        "HAS_SINKS": sinks is not None,
    }
    launches: list[Launch] = []
    num_decodes = batch.num_decodes
    if num_decodes:
        config = configs["decode"] if configs else tile_config(chip.arch, head_dim, block_size, k_cache.dtype, "decode")
        table_tokens = batch.block_tables.shape[1] * block_size
        target_items = max(1, chip.processors * config.programs_per_sm // num_kv_heads)
        max_items = num_decodes + target_items
        if split_tokens is not None:
            max_items = num_decodes * max(1, math.ceil(table_tokens / split_tokens))
        elif table_tokens <= config.min_chunk:
            max_items = num_decodes
        partial = torch.empty((max_items, num_heads, head_dim), dtype=torch.float32, device=q.device)
        stats = torch.empty((max_items, num_heads, 2), dtype=torch.float32, device=q.device)
        row_items = torch.empty((num_decodes, 2), dtype=torch.int32, device=q.device)
        arguments = shared | {
            "partial_ptr": partial,
            "partial_stats_ptr": stats,
            "row_items_ptr": row_items,
            "num_rows": num_decodes,
            "target_items": target_items,
            "fixed_chunk": split_tokens or 0,
            "BLOCK_M": max(config.block_m, triton.next_power_of_2(group)),
            "TILE": config.tile,
            "MIN_CHUNK": config.min_chunk,
        }
        launches.append(Launch(decode_kernel, (max_items, num_kv_heads), arguments, config.warps, config.stages))
        if max_items > num_decodes:
            arguments = {
                "out_ptr": out,
                "partial_ptr": partial,
                "partial_stats_ptr": stats,
                "row_items_ptr": row_items,
                "NUM_HEADS": num_heads,
                "HEAD_DIM": head_dim,
                "BLOCK_D": block_d,
                "SPLITS_AT_ONCE": SPLITS_AT_ONCE,
            }
            launches.append(Launch(merge_kernel, (num_decodes, num_heads), arguments))
    num_prefills = batch.seq_lens.shape[0] - num_decodes
    if num_prefills:
        config = (
            configs["prefill"] if configs else tile_config(chip.arch, head_dim, block_size, k_cache.dtype, "prefill")
        )
        block_m = max(config.block_m, triton.next_power_of_2(group))
        query_blocks = (num_tokens - num_decodes) // (block_m // group) + num_prefills
        arguments = shared | {
            "cu_seqlens_ptr": batch.cu_seqlens,
            "num_decodes": num_decodes,
            "num_seqs": num_prefills,
            "BLOCK_M": block_m,
            "TILE": config.tile,
        }
        launches.append(Launch(prefill_kernel, (query_blocks, num_kv_heads), arguments, config.warps, config.stages))
    return launches


def _check(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    batch: RaggedBatch,
    scale: float,
    sliding_window: int | None,
    soft_cap: float | None,
    sinks: torch.Tensor | None,
    split_tokens: int | None,
    chip: Chip,
) -> None:
    require(q.ndim == 3, f"q must be [tokens, num_heads, head_dim], not {list(q.shape)}")
    require(
        k_cache.ndim == 4, f"k_cache must be [blocks, block_size, num_kv_heads, head_dim], not {list(k_cache.shape)}"
    )
    _, block_size, num_kv_heads, head_dim = k_cache.shape
    require(v_cache.shape == k_cache.shape, f"v_cache has shape {list(v_cache.shape)}, k_cache {list(k_cache.shape)}")
    require(v_cache.stride() == k_cache.stride(), f"v_cache has strides {v_cache.stride()}, k_cache {k_cache.stride()}")
    require(q.shape[2] == head_dim, f"q has head_dim {q.shape[2]}, the cache {head_dim}")
    require(head_dim <= MAX_HEAD_DIM, f"head_dim {head_dim} is over {MAX_HEAD_DIM}")
    require(q.stride(2) == 1 and k_cache.stride(3) == 1, "the last dimension of q and of the cache must have stride 1")
    require(
        block_size >= MIN_BLOCK_SIZE and block_size & (block_size - 1) == 0,
        f"block_size must be a power of two of at least {MIN_BLOCK_SIZE}, not {block_size}",
    )
    group, rest = divmod(q.shape[1], num_kv_heads)
    require(rest == 0, f"{q.shape[1]} query heads are not a multiple of {num_kv_heads} kv heads")
    require(1 <= group <= MAX_GROUP, f"{group} query heads a kv head; at most {MAX_GROUP} are supported")
    require(q.dtype in (torch.float16, torch.bfloat16, torch.float32), f"q has dtype {q.dtype}")
    require(k_cache.dtype == v_cache.dtype, f"k_cache has dtype {k_cache.dtype}, v_cache {v_cache.dtype}")
    require(
        k_cache.dtype in (q.dtype, FLOAT8), f"the cache has dtype {k_cache.dtype}; allowed are {q.dtype} and {FLOAT8}"
    )
    require(
        k_cache.dtype != FLOAT8 or chip.arch not in ("sm_80", "sm_86", "sm_87"),
        f"a {FLOAT8} cache needs compute capability 8.9 or newer; this device is {chip.arch}",
    )
    require(math.isfinite(scale) and scale > 0, f"scale must be positive, not {scale}")
    require(sliding_window is None or sliding_window > 0, f"sliding_window must be at least 1, not {sliding_window}")
    require(soft_cap is None or soft_cap > 0, f"soft_cap must be positive, not {soft_cap}")
    require(split_tokens is None or split_tokens > 0, f"split_tokens must be at least 1, not {split_tokens}")
    require(
        sinks is None or (sinks.shape == (q.shape[1],) and sinks.is_contiguous()),
        f"sinks must be one contiguous logit for each of {q.shape[1]} heads",
    )
    for name in ("block_tables", "seq_lens", "cu_seqlens"):
        tensor: torch.Tensor = getattr(batch, name)
        require(tensor.dtype == torch.int32, f"batch.{name} must be int32, not {tensor.dtype}")
        require(tensor.stride(-1) == 1, f"batch.{name} must have stride 1 in its last dimension")
    rows = batch.seq_lens.shape[0]
    require(batch.block_tables.shape[0] == rows, f"{batch.block_tables.shape[0]} block tables for {rows} sequences")
    require(batch.cu_seqlens.shape[0] == rows + 1, f"{batch.cu_seqlens.shape[0]} cu_seqlens for {rows} sequences")
    require(0 <= batch.num_decodes <= min(rows, q.shape[0]), f"{batch.num_decodes} decodes of {rows} sequences")
