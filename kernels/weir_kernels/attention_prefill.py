"""Prefill attention: blocks of query tokens of one sequence, all query heads of a kv head packed in one tile."""

# ruff: noqa: N803
# mypy: disable-error-code="untyped-decorator,no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

from weir_kernels.attention_tile import attend, start_softmax

PER_STEP = ["num_decodes", "num_seqs", "stride_table", "window", "cu_seqlens_ptr", "seq_lens_ptr", "table_ptr"]


@triton.jit
def _find_sequence(query_block, cu_seqlens_ptr, num_decodes, num_seqs, BLOCK_Q: tl.constexpr):
    """The prefill sequence that query_block belongs to: the last i with tokens_before(i) // BLOCK_Q + i <= block.

    Every sequence owns one block more than its full ones, which bounds the grid by tokens // BLOCK_Q + sequences
    without the host knowing any length.
    """
    left = tl.zeros([], tl.int32)
    right = num_seqs
    while right - left > 1:
        middle = (left + right) // 2
        tokens_before = tl.load(cu_seqlens_ptr + num_decodes + middle) - num_decodes
        if tokens_before // BLOCK_Q + middle <= query_block:
            left = middle
        else:
            right = middle
    return left


@triton.jit(do_not_specialize=PER_STEP)
def prefill_kernel(
    out_ptr,
    q_ptr,
    k_ptr,
    v_ptr,
    table_ptr,
    cu_seqlens_ptr,
    seq_lens_ptr,
    sinks_ptr,
    qk_scale,
    qk_log2_scale,
    soft_cap,
    v_scale,
    window,
    num_decodes,
    num_seqs,
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
    HAS_WINDOW: tl.constexpr,
    HAS_SOFT_CAP: tl.constexpr,
    HAS_SINKS: tl.constexpr,
):
    """Grid (query blocks, kv heads); num_seqs sequences follow the num_decodes decode rows.

    Lane m of the tile is query head m % GROUP of token m // GROUP of the block; lanes past BLOCK_Q * GROUP are idle.
    """
    BLOCK_Q: tl.constexpr = BLOCK_M // GROUP  # noqa: N806
    # The last blocks of a causal prompt are the longest: they start first.
    query_block = tl.num_programs(0) - 1 - tl.program_id(0)
    kv_head = tl.program_id(1)
    local = _find_sequence(query_block, cu_seqlens_ptr, num_decodes, num_seqs, BLOCK_Q)
    sequence = (num_decodes + local).to(tl.int64)
    first_token = tl.load(cu_seqlens_ptr + sequence)
    chunk_len = tl.load(cu_seqlens_ptr + sequence + 1) - first_token
    seq_len = tl.load(seq_lens_ptr + sequence)
    block_start = (query_block - (first_token - num_decodes) // BLOCK_Q - local) * BLOCK_Q
    if block_start >= chunk_len:
        return
    context = seq_len - chunk_len

    lanes = tl.arange(0, BLOCK_M)
    dims = tl.arange(0, BLOCK_D)
    lane_tokens = block_start + lanes // GROUP
    heads = kv_head * GROUP + lanes % GROUP
    present = (lanes < BLOCK_Q * GROUP) & (lane_tokens < chunk_len)
    row_positions = context + lane_tokens
    wanted = present[:, None] & (dims < HEAD_DIM)[None, :]
    tokens = (first_token + lane_tokens).to(tl.int64)
    q_offsets = (tokens * stride_q_token + heads.to(tl.int64) * stride_q_head)[:, None] + dims[None, :]
    q = tl.load(q_ptr + q_offsets, mask=wanted, other=0.0)

    block_end = tl.minimum(block_start + BLOCK_Q, chunk_len)
    high = tl.maximum(context + block_end, 0)
    low = tl.zeros([], tl.int32)
    full_from = tl.zeros([], tl.int32)
    if HAS_WINDOW:
        low = tl.maximum(context + block_start - window + 1, 0)
        full_from = tl.minimum(tl.cdiv(tl.maximum(high - window, 0), TILE) * TILE, high)
    # Tiles in [full_from, full_to) are seen whole by every row of the block: no mask, no bound.
    full_to = tl.maximum(tl.maximum(context + block_start + 1, 0) // TILE * TILE, full_from)

    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    running_max, running_sum = start_softmax(sinks_ptr, heads, qk_log2_scale, True, BLOCK_M, HAS_SINKS)
    kv_offset = kv_head.to(tl.int64) * stride_kv_head
    table_row = table_ptr + sequence * stride_table
    for edge in tl.static_range(3):
        if edge != 0 or HAS_WINDOW:
            if edge == 0:
                first = low // TILE * TILE
                end = full_from
            elif edge == 1:
                first = full_from
                end = full_to
            else:
                first = full_to
                end = high
            acc, running_max, running_sum = attend(
                acc,
                running_max,
                running_sum,
                q,
                k_ptr + kv_offset,
                v_ptr + kv_offset,
                table_row,
                stride_block,
                stride_slot,
                first,
                end,
                low,
                high,
                row_positions,
                qk_scale,
                qk_log2_scale,
                soft_cap,
                window,
                HEAD_DIM,
                BLOCK_D,
                BLOCK_SIZE,
                TILE,
                BOUNDED=edge != 1,
                CAUSAL=edge != 1,
                HAS_WINDOW=HAS_WINDOW,
                HAS_SOFT_CAP=HAS_SOFT_CAP,
            )
    acc = acc * (v_scale / tl.where(running_sum == 0.0, 1.0, running_sum))[:, None]
    out_offsets = (tokens * NUM_HEADS + heads)[:, None] * HEAD_DIM + dims[None, :]
    tl.store(out_ptr + out_offsets, acc.to(out_ptr.dtype.element_ty), mask=wanted)
