"""Every kernel on a device, in the number formats that only a device has. Run by `check.py`; needs a GPU.

Under Triton's interpreter the same tests run on the CPU, in float16 and float32, so that they are known to work.
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
ORACLE = ROOT / "tests" / "unit" / "kernels" / "triton" / "interpreted"
sys.path[:0] = [str(ROOT / "kernels"), str(ROOT / "service"), str(ORACLE)]

from attention_oracle import Problem, attention_float64, make_problem  # noqa: E402
from weir_kernels import reference  # noqa: E402
from weir_kernels.activation import gelu_mul, silu_mul  # noqa: E402
from weir_kernels.attention import FLOAT8, paged_attention  # noqa: E402
from weir_kernels.norm import add_rms_norm, rms_norm  # noqa: E402
from weir_kernels.qkv import norm_rope_write_kv  # noqa: E402
from weir_kernels.sampling import sample  # noqa: E402

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
DTYPES = [torch.bfloat16, torch.float16] if GPU else [torch.float32, torch.float16]
CACHES = [None, *([FLOAT8] if GPU and torch.cuda.get_device_capability() >= (8, 9) else [])]
TOLERANCE = {torch.bfloat16: 2e-2, torch.float16: 4e-3, torch.float32: 1e-5}
LAYOUTS = [(5, 80, 32), *([(4, 128, 16), (1, 64, 64), (8, 256, 16)] if GPU else [])]
MIXED = [(1, 1), (1, 0), (1, 700 if GPU else 77), (1, 16), (19, 50), (0, 0), (5, 5)]


def on_device(problem: Problem) -> Problem:
    batch = problem.batch
    moved = {
        field.name: value.to(DEVICE)
        for field in dataclasses.fields(batch)
        if isinstance(value := getattr(batch, field.name), torch.Tensor)
    }
    tensors = (tensor.to(DEVICE) for tensor in (problem.q, problem.k_cache, problem.v_cache))
    return Problem(*tensors, dataclasses.replace(batch, **moved))


def check_attention(problem: Problem, window: int | None = None, soft_cap: float | None = None) -> None:
    scale = problem.q.shape[2] ** -0.5
    here = on_device(problem)
    actual = paged_attention(here.q, here.k_cache, here.v_cache, here.batch, scale, window, soft_cap=soft_cap).cpu()
    expected = attention_float64(problem, scale, window=window, soft_cap=soft_cap)
    tolerance = TOLERANCE[problem.q.dtype]
    assert actual.isfinite().all()
    torch.testing.assert_close(actual.double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("cache_dtype", CACHES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("group", "head_dim", "block_size"), LAYOUTS)
def test_a_mixed_batch_matches_float64(
    group: int, head_dim: int, block_size: int, dtype: torch.dtype, cache_dtype: torch.dtype | None
) -> None:
    check_attention(
        make_problem(
            MIXED,
            num_heads=2 * group,
            num_kv_heads=2,
            head_dim=head_dim,
            block_size=block_size,
            dtype=dtype,
            cache_dtype=cache_dtype,
        )
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_window_and_a_soft_cap_match_float64(dtype: torch.dtype) -> None:
    problem = make_problem(MIXED, num_heads=6, num_kv_heads=2, head_dim=128, block_size=16, dtype=dtype)
    check_attention(problem, window=20, soft_cap=8.0)


@pytest.mark.parametrize("context", [3000, 40000] if GPU else [600])
def test_many_splits_of_a_long_row_are_merged_right(context: int) -> None:
    problem = make_problem(
        [(1, context), (1, 5)], num_heads=8, num_kv_heads=1, head_dim=128, block_size=16, dtype=DTYPES[0]
    )
    check_attention(problem)


@pytest.mark.parametrize("dtype", DTYPES)
def test_norms_and_activations_match_the_reference(dtype: torch.dtype) -> None:
    x, residual = (torch.randn(37, 1000, device=DEVICE).to(dtype) for _ in range(2))
    weight = torch.rand(1000, device=DEVICE).to(dtype)
    tolerance = {"rtol": TOLERANCE[dtype], "atol": TOLERANCE[dtype]}
    torch.testing.assert_close(rms_norm(x, weight, 1e-5), reference.rms_norm(x, weight, 1e-5), **tolerance)
    normed, total = add_rms_norm(x, residual, weight, 1e-5)
    expected_normed, expected_total = reference.add_rms_norm(x, residual, weight, 1e-5)
    assert torch.equal(total, expected_total)
    torch.testing.assert_close(normed, expected_normed, **tolerance)
    torch.testing.assert_close(silu_mul(x), reference.silu_mul(x), **tolerance)
    gate, up = x.double().chunk(2, dim=1)
    expected = torch.nn.functional.gelu(gate, approximate="tanh") * up
    torch.testing.assert_close(gelu_mul(x).double(), expected, **tolerance)


@pytest.mark.parametrize("cache_dtype", CACHES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_fused_pass_writes_what_the_reference_writes(dtype: torch.dtype, cache_dtype: torch.dtype | None) -> None:
    qkv = torch.randn(6, 12, 128, device=DEVICE).to(dtype)
    q, k, v = qkv.split_with_sizes((8, 2, 2), dim=1)
    weights = torch.rand(2, 128, device=DEVICE).to(dtype)
    angles = torch.rand(50, 64, device=DEVICE) * 6
    positions = torch.tensor([0, 3, 49, 7, 7, 1], device=DEVICE)
    slots = torch.tensor([17, -1, 33, 0, 47, 16], device=DEVICE)
    results = []
    for function in (norm_rope_write_kv, reference.norm_rope_write_kv):
        cache = torch.zeros(2, 3, 16, 2, 128, device=DEVICE).to(cache_dtype or dtype)
        out = function(
            q, k, v, weights[0], weights[1], 1e-6, angles.cos(), angles.sin(), positions, cache[0], cache[1], slots
        )
        results.append((out, cache))
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(results[0][0], results[1][0], rtol=tolerance, atol=2 * tolerance)
    loose = 0.13 if cache_dtype else tolerance  # one step of e4m3 is an eighth of its value
    torch.testing.assert_close(results[0][1].float(), results[1][1].float(), rtol=loose, atol=2 * tolerance)


def test_samples_follow_their_weights_and_truncated_tokens_never_appear() -> None:
    rows = 20000 if GPU else 60
    logits = torch.tensor([4.0, 3.0, 2.0, 1.0, 8.0]).log().to(DEVICE).expand(rows, 5)
    ones = torch.ones(rows, device=DEVICE)
    u = (torch.arange(rows, dtype=torch.float64, device=DEVICE) + 0.5) / rows
    top_k = torch.full((rows,), 3, dtype=torch.int32, device=DEVICE)
    drawn = sample(logits, ones, top_k, ones, 0 * ones, u)
    counts = torch.bincount(drawn, minlength=5).tolist()
    # Kept are ids 0, 1 and 4 with weights 4, 3 and 8 of 15, and u runs evenly over [0, 1).
    assert counts == [round(rows * 4 / 15), round(rows * 7 / 15) - round(rows * 4 / 15), 0, 0, counts[4]]
    assert sum(counts) == rows
