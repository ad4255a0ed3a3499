"""Split-KV planning on the device: which part of which decode row a program works on.

The key/value tokens of all decode rows are cut into work items of at most `chunk` tokens, the same `chunk` for every
row of a step, so a long row gets many programs and a short row one. `chunk` follows from the lengths alone, which
live on the device: nothing here needs the host, and a captured graph stays right when lengths change.
"""

# ruff: noqa: N803
# mypy: disable-error-code="untyped-decorator,no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

ROWS_AT_ONCE = tl.constexpr(256)


@triton.jit
def _visible(seq_lens_ptr, rows, num_rows, window, HAS_WINDOW: tl.constexpr):
    lengths = tl.load(seq_lens_ptr + rows, mask=rows < num_rows, other=0)
    if HAS_WINDOW:
        lengths = tl.minimum(lengths, window)
    return lengths


@triton.jit
def find_work_item(
    item,
    seq_lens_ptr,
    num_rows,
    target_items,
    fixed_chunk,
    window,
    MIN_CHUNK: tl.constexpr,
    TILE: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
):
    """Returns (row, split, number of splits of the row, chunk); row == num_rows when there is no such item.

    chunk = max(MIN_CHUNK, total / target_items) rounded up to TILE, or fixed_chunk where that is not 0, so the number
    of items is at most target_items + num_rows. An empty row has one item: its output must still be written.
    """
    chunk = fixed_chunk
    if fixed_chunk == 0:
        total = tl.zeros([], tl.int64)
        for base in range(0, num_rows, ROWS_AT_ONCE):
            rows = base + tl.arange(0, ROWS_AT_ONCE)
            total += tl.sum(_visible(seq_lens_ptr, rows, num_rows, window, HAS_WINDOW).to(tl.int64), 0)
        share = tl.cdiv(total, target_items).to(tl.int32)
        chunk = tl.maximum(tl.cdiv(share, TILE) * TILE, MIN_CHUNK)

    row = tl.zeros([], tl.int32)
    row_first_item = tl.zeros([], tl.int32)
    row_splits = tl.zeros([], tl.int32)
    items_before = tl.zeros([], tl.int32)
    for base in range(0, num_rows, ROWS_AT_ONCE):
        rows = base + tl.arange(0, ROWS_AT_ONCE)
        lengths = _visible(seq_lens_ptr, rows, num_rows, window, HAS_WINDOW)
        splits = tl.where(rows < num_rows, tl.maximum(tl.cdiv(lengths, chunk), 1), 0)
        ends = items_before + tl.cumsum(splits, 0)
        passed = (ends <= item) & (rows < num_rows)
        mine = (ends > item) & (ends - splits <= item)
        row += tl.sum(passed.to(tl.int32), 0)
        row_first_item += tl.sum(tl.where(mine, ends - splits, 0), 0)
        row_splits += tl.sum(tl.where(mine, splits, 0), 0)
        items_before += tl.sum(splits, 0)
    return row, item - row_first_item, row_splits, chunk
