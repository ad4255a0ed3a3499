"""Decode attention: rows of one query token, the query heads of a kv head packed in one tile, split over KV length."""

# ruff: noqa: N803
# mypy: disable-error-code="untyped-decorator,no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

from weir_kernels.attention_split import find_work_item
from weir_kernels.attention_tile import attend, start_softmax

PER_STEP = ["num_rows", "target_items", "fixed_chunk", "stride_table", "window", "seq_lens_ptr", "table_ptr"]


@triton.jit(do_not_specialize=PER_STEP)
def decode_kernel(
    out_ptr,
    partial_ptr,
    partial_stats_ptr,
    row_items_ptr,
    q_ptr,
    k_ptr,
    v_ptr,
    table_ptr,
    seq_lens_ptr,
    sinks_ptr,
    qk_scale,
    qk_log2_scale,
    soft_cap,
    v_scale,
    window,
    num_rows,
    target_items,
    fixed_chunk,
    stride_table,
    stride_q_token: tl.int64,
    stride_q_head: tl.int64,
    stride_block: tl.int64,
    stride_slot: tl.int64,
    stride_kv_head: tl.int64,
    NUM_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
    MIN_CHUNK: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_SOFT_CAP: tl.constexpr,
    HAS_SINKS: tl.constexpr,
):
    """Grid (work items, kv heads). Row r is token r of the batch.

    A row with one split is written to `out` [T, NUM_HEADS, HEAD_DIM]; of the others each split leaves its
    unnormalised sum, running max (base 2) and running sum in the partials, indexed by work item, and
    `row_items` [rows, 2] (first item, number of splits) tells the merge where they are.
    """
    item = tl.program_id(0)
    kv_head = tl.program_id(1)
    row, split, num_splits, chunk = find_work_item(
        item, seq_lens_ptr, num_rows, target_items, fixed_chunk, window, MIN_CHUNK, TILE, HAS_WINDOW
    )
    if row >= num_rows:
        return
    row_64 = row.to(tl.int64)
    seq_len = tl.load(seq_lens_ptr + row_64)
    visible_from = tl.zeros([], tl.int32)
    if HAS_WINDOW:
        visible_from = tl.maximum(seq_len - window, 0)
    low = visible_from + split * chunk
    high = tl.minimum(low + chunk, seq_len)

    lanes = tl.arange(0, BLOCK_M)
    dims = tl.arange(0, BLOCK_D)
    heads = kv_head * GROUP + tl.minimum(lanes, GROUP - 1)
    wanted = (lanes < GROUP)[:, None] & (dims < HEAD_DIM)[None, :]
    q_offsets = heads.to(tl.int64)[:, None] * stride_q_head + dims[None, :]
    q = tl.load(q_ptr + row_64 * stride_q_token + q_offsets, mask=wanted, other=0.0)

    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    running_max, running_sum = start_softmax(sinks_ptr, heads, qk_log2_scale, split == 0, BLOCK_M, HAS_SINKS)
    kv_offset = kv_head.to(tl.int64) * stride_kv_head
    acc, running_max, running_sum = attend(
        acc,
        running_max,
        running_sum,
        q,
        k_ptr + kv_offset,
        v_ptr + kv_offset,
        table_ptr + row_64 * stride_table,
        stride_block,
        stride_slot,
        low // TILE * TILE,
        high,
        low,
        high,
        lanes,
        qk_scale,
        qk_log2_scale,
        soft_cap,
        window,
        HEAD_DIM,
        BLOCK_D,
        BLOCK_SIZE,
        TILE,
        BOUNDED=True,
        CAUSAL=False,
        HAS_WINDOW=HAS_WINDOW,
        HAS_SOFT_CAP=HAS_SOFT_CAP,
    )
    acc = acc * v_scale

    if split == 0:
        tl.store(row_items_ptr + row_64 * 2, item)
        tl.store(row_items_ptr + row_64 * 2 + 1, num_splits)
    if num_splits == 1:
        acc = acc / tl.where(running_sum == 0.0, 1.0, running_sum)[:, None]
        out_offsets = heads[:, None] * HEAD_DIM + dims[None, :]
        tl.store(out_ptr + row_64 * (NUM_HEADS * HEAD_DIM) + out_offsets, acc.to(out_ptr.dtype.element_ty), mask=wanted)
    else:
        item_heads = item.to(tl.int64) * NUM_HEADS
        tl.store(partial_ptr + item_heads * HEAD_DIM + (heads[:, None] * HEAD_DIM + dims[None, :]), acc, mask=wanted)
        stats = partial_stats_ptr + item_heads * 2 + heads * 2
        tl.store(stats, running_max * qk_log2_scale, mask=lanes < GROUP)
        tl.store(stats + 1, running_sum, mask=lanes < GROUP)


@triton.jit
def merge_kernel(
    out_ptr,
    partial_ptr,
    partial_stats_ptr,
    row_items_ptr,
    NUM_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    SPLITS_AT_ONCE: tl.constexpr,
):
    """Grid (rows, query heads): out = sum_i 2^(m_i - m) acc_i / sum_i 2^(m_i - m) l_i over the splits i of a row.

    Which splits exist is read from what the decode kernel wrote, so the two cannot disagree.
    """
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    first_item = tl.load(row_items_ptr + row * 2)
    num_splits = tl.load(row_items_ptr + row * 2 + 1)
    if num_splits == 1:
        return
    lanes = tl.arange(0, SPLITS_AT_ONCE)
    dims = tl.arange(0, BLOCK_D)
    # The scalar base joins the pointer before the tile's offsets do: folded into the broadcast offsets it is
    # miscompiled by Triton 3.5.0 to 3.6.0 for some layouts.
    base = first_item.to(tl.int64) * NUM_HEADS + head
    partial_base = partial_ptr + base * HEAD_DIM
    stats_base = partial_stats_ptr + base * 2

    acc = tl.zeros([BLOCK_D], tl.float32)
    merged_max = tl.full([], float("-inf"), tl.float32)
    merged_sum = tl.zeros([], tl.float32)
    for start in range(0, num_splits, SPLITS_AT_ONCE):
        splits = (start + lanes).to(tl.int64)
        present = splits < num_splits
        split_max = tl.load(stats_base + splits * (NUM_HEADS * 2), mask=present, other=float("-inf"))
        split_sum = tl.load(stats_base + splits * (NUM_HEADS * 2) + 1, mask=present, other=0.0)
        wanted = present[:, None] & (dims < HEAD_DIM)[None, :]
        offsets = splits[:, None] * (NUM_HEADS * HEAD_DIM) + dims[None, :]
        parts = tl.load(partial_base + offsets, mask=wanted, other=0.0)

        new_max = tl.maximum(merged_max, tl.max(split_max, 0))
        finite_max = tl.where(new_max == float("-inf"), 0.0, new_max)
        weights = tl.exp2(split_max - finite_max)
        correction = tl.exp2(merged_max - finite_max)
        acc = acc * correction + tl.sum(parts * weights[:, None], 0)
        merged_sum = merged_sum * correction + tl.sum(split_sum * weights, 0)
        merged_max = new_max
    acc = acc / tl.where(merged_sum == 0.0, 1.0, merged_sum)
    out_base = out_ptr + (row * NUM_HEADS + head) * HEAD_DIM
    tl.store(out_base + dims, acc.to(out_ptr.dtype.element_ty), mask=dims < HEAD_DIM)
