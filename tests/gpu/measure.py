"""Attention against what the same device reaches in the same run: bytes of a copy, operations of a matrix product."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
from weir_kernels.attention import paged_attention
from weir_kernels.tuning.problems import Layout, Problem, decode_problem, prefill_problem

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Sizes:
    """What to measure: (batch, context) of decodes, (tokens, context before them) of prompts, block sizes."""

    decodes: Sequence[tuple[int, int]]
    prompts: Sequence[tuple[int, int]]
    block_sizes: Sequence[int]
    copy_bytes: int
    matmul: int
    heads: tuple[int, int, int]


FULL = Sizes(
    decodes=[(batch, context) for batch in (1, 8, 64) for context in (1024, 8192, 32768)],
    prompts=[(1024, 0), (8192, 0), (2048, 30720)],
    block_sizes=(16, 64),
    copy_bytes=2**31,
    matmul=8192,
    heads=(32, 8, 128),
)
REHEARSAL = Sizes([(2, 40)], [(9, 7)], (16,), 2**16, 64, (4, 2, 64))


def milliseconds(call: Callable[[], Any], device: torch.device) -> float:
    """Median on a GPU, with a cold cache before each call; elsewhere one call by the clock."""
    if device.type == "cuda":
        return float(triton.testing.do_bench(call, return_mode="median"))
    began = time.perf_counter()
    call()
    return (time.perf_counter() - began) * 1e3


def roofs(sizes: Sizes, dtype: torch.dtype, device: torch.device) -> tuple[float, float]:
    """(GB/s of a copy, reads and writes counted; TFLOP/s of a square matrix product) of this device."""
    source = torch.empty(sizes.copy_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copied = milliseconds(lambda: target.copy_(source), device)
    n = sizes.matmul
    a, b = torch.randn(n, n, dtype=dtype, device=device), torch.randn(n, n, dtype=dtype, device=device)
    multiplied = milliseconds(lambda: a @ b, device)
    return 2 * sizes.copy_bytes / copied / 1e6, 2 * n**3 / multiplied / 1e9


def attention_rows(
    sizes: Sizes, dtypes: Sequence[tuple[torch.dtype, torch.dtype]], device: torch.device, roof: tuple[float, float]
) -> Iterator[Row]:
    """One row for each problem: time, and the share of the roof that bounds it."""
    for block_size in sizes.block_sizes:
        for dtype, cache_dtype in dtypes:
            layout = Layout(*sizes.heads, block_size, dtype, cache_dtype)
            for batch, context in sizes.decodes:
                problem = decode_problem(layout, batch, context, device)
                elapsed = _time(problem, device)
                rate = problem.kv_bytes / elapsed / 1e6
                yield _row("decode", layout, batch, context, elapsed) | {"GB/s": rate, "of roof": rate / roof[0]}
            for tokens, context in sizes.prompts:
                problem = prefill_problem(layout, tokens, context, device)
                elapsed = _time(problem, device)
                rate = problem.flops / elapsed / 1e9
                yield _row("prefill", layout, tokens, context, elapsed) | {"TFLOP/s": rate, "of roof": rate / roof[1]}


def _time(problem: Problem, device: torch.device) -> float:
    scale = problem.q.shape[2] ** -0.5
    return milliseconds(
        lambda: paged_attention(problem.q, problem.k_cache, problem.v_cache, problem.batch, scale), device
    )


def _row(kind: str, layout: Layout, count: int, context: int, elapsed: float) -> Row:
    cache = str(layout.cache_dtype).removeprefix("torch.")
    return {
        "kernel": kind,
        "cache": cache,
        "block": layout.block_size,
        "rows or tokens": count,
        "context": context,
        "ms": elapsed,
    }
