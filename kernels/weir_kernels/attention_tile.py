"""The body of attention: one tile of packed query rows against a range of a sequence's paged keys and values.

Both launches (decode and prefill) run this body; they differ only in how a program finds its rows and its range.
Online softmax in float32, base 2: with c = scale * log2(e), p = exp2(c * s - c * max(s)).
"""

# ruff: noqa: N803
# mypy: disable-error-code="untyped-decorator,no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def start_softmax(sinks_ptr, heads, qk_log2_scale, first_split, BLOCK_M: tl.constexpr, HAS_SINKS: tl.constexpr):
    """Running max (in units of score) and sum [BLOCK_M] before any key is seen.

    A sink is a logit with no value: it joins the sum of the first split only, so that a merge counts it once.
    """
    if HAS_SINKS:
        sink = tl.load(sinks_ptr + heads).to(tl.float32) * LOG2E / qk_log2_scale
        running_max = tl.where(first_split, sink, float("-inf"))
        running_sum = tl.where(first_split, 1.0, 0.0) + tl.zeros([BLOCK_M], tl.float32)
    else:
        running_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
        running_sum = tl.zeros([BLOCK_M], tl.float32)
    return running_max, running_sum


@triton.jit
def attend(
    acc,
    running_max,
    running_sum,
    q,
    k_ptr,
    v_ptr,
    table_ptr,
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
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
    BOUNDED: tl.constexpr,
    CAUSAL: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_SOFT_CAP: tl.constexpr,
):
    """Adds the keys of positions [first, end), tile by tile, to the running softmax of the rows.

    q: [BLOCK_M, BLOCK_D]; k_ptr, v_ptr: the cache at this program's kv head; table_ptr: the sequence's block table.
    first: a multiple of TILE. BOUNDED: only positions in [low, high) are read and counted; everything else in the
    cache may hold anything, NaN included, so it is never loaded (a masked score alone would still give 0 * NaN).
    CAUSAL: a row at position p also counts only keys in (p - window, p].
    """
    dims = tl.arange(0, BLOCK_D)
    for start in tl.range(first, end, TILE):
        positions = start + tl.arange(0, TILE)
        inside = (positions >= low) & (positions < high)
        if BLOCK_SIZE % TILE == 0:
            block = tl.load(table_ptr + start // BLOCK_SIZE).to(tl.int64)
            slots = block * stride_block + (positions % BLOCK_SIZE).to(tl.int64) * stride_slot
        else:
            if BOUNDED:
                blocks = tl.load(table_ptr + positions // BLOCK_SIZE, mask=inside, other=0).to(tl.int64)
            else:
                blocks = tl.load(table_ptr + positions // BLOCK_SIZE).to(tl.int64)
            slots = blocks * stride_block + (positions % BLOCK_SIZE).to(tl.int64) * stride_slot
        offsets = slots[:, None] + dims[None, :]
        if BOUNDED and HEAD_DIM != BLOCK_D:
            wanted = inside[:, None] & (dims < HEAD_DIM)[None, :]
            k = tl.load(k_ptr + offsets, mask=wanted, other=0.0)
            v = tl.load(v_ptr + offsets, mask=wanted, other=0.0)
        elif BOUNDED:
            k = tl.load(k_ptr + offsets, mask=inside[:, None], other=0.0)
            v = tl.load(v_ptr + offsets, mask=inside[:, None], other=0.0)
        elif HEAD_DIM != BLOCK_D:
            k = tl.load(k_ptr + offsets, mask=(dims < HEAD_DIM)[None, :], other=0.0)
            v = tl.load(v_ptr + offsets, mask=(dims < HEAD_DIM)[None, :], other=0.0)
        else:
            k = tl.load(k_ptr + offsets)
            v = tl.load(v_ptr + offsets)

        scores = tl.dot(q, tl.trans(k.to(q.dtype)), input_precision="ieee")
        if HAS_SOFT_CAP:
            # tanh through exp saturates at both ends instead of overflowing to NaN.
            scores = soft_cap * (1.0 - 2.0 / (tl.exp(2.0 * qk_scale * scores / soft_cap) + 1.0))
        if BOUNDED:
            scores = tl.where(inside[None, :], scores, float("-inf"))
        if CAUSAL:
            scores = tl.where(positions[None, :] <= row_positions[:, None], scores, float("-inf"))
            if HAS_WINDOW:
                in_window = positions[None, :] > (row_positions - window)[:, None]
                scores = tl.where(in_window, scores, float("-inf"))

        new_max = tl.maximum(running_max, tl.max(scores, 1))
        # A row that has seen no key keeps -inf as its max; 0 stands in only where -inf - -inf would be NaN.
        finite_max = tl.where(new_max == float("-inf"), 0.0, new_max)
        p = tl.exp2(scores * qk_log2_scale - (finite_max * qk_log2_scale)[:, None])
        correction = tl.exp2((running_max - finite_max) * qk_log2_scale)
        running_sum = running_sum * correction + tl.sum(p, 1)
        acc = acc * correction[:, None]
        acc = tl.dot(p.to(q.dtype), v.to(q.dtype), acc, input_precision="ieee")
        running_max = new_max
    return acc, running_max, running_sum
