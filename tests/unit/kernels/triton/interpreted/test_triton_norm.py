"""RMSNorm against float64."""

from __future__ import annotations

import pytest
import torch
from weir_kernels.norm import add_rms_norm, rms_norm


def norm_float64(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    wide = x.double()
    return wide / (wide.square().mean(-1, keepdim=True) + eps).sqrt() * weight.double()


@pytest.mark.parametrize("hidden", [64, 111, 500, 2048])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.float16, 2e-3)])
def test_rms_norm_matches_float64_for_any_hidden_size(hidden: int, dtype: torch.dtype, tolerance: float) -> None:
    x, weight = torch.randn(5, hidden).to(dtype), torch.rand(hidden).to(dtype)
    torch.testing.assert_close(
        rms_norm(x, weight, 1e-5).double(), norm_float64(x, weight, 1e-5), rtol=tolerance, atol=tolerance
    )


def test_rms_norm_reads_strided_rows_and_heads_without_a_copy() -> None:
    rows = torch.full((6, 300), float("nan"))
    rows[::2, :96] = torch.randn(3, 96)
    x = rows[::2, :96]
    weight = torch.ones(96)
    torch.testing.assert_close(rms_norm(x, weight, 1e-6).double(), norm_float64(x, weight, 1e-6), rtol=2e-6, atol=2e-6)
    heads = torch.randn(4, 7, 80)[:, 2:5]
    weight = torch.rand(80)
    torch.testing.assert_close(
        rms_norm(heads, weight, 1e-6).double(), norm_float64(heads, weight, 1e-6), rtol=2e-6, atol=2e-6
    )


def test_add_rms_norm_returns_the_sum_and_norms_it_after_rounding() -> None:
    x, residual, weight = (torch.randn(*shape).half() for shape in ((7, 160), (7, 160), (160,)))
    normed, total = add_rms_norm(x, residual, weight, 1e-5)
    assert torch.equal(total, (x.float() + residual.float()).half())
    torch.testing.assert_close(normed.double(), norm_float64(total, weight, 1e-5), rtol=2e-3, atol=2e-3)


def test_rows_beyond_two_to_the_31_elements_are_addressed_in_64_bits() -> None:
    values = torch.randn(3, 128).half()
    x = torch.empty(2**31 + 128, dtype=torch.float16).as_strided((3, 128), (2**30, 1))
    x.copy_(values)
    torch.testing.assert_close(
        rms_norm(x, torch.ones(128).half(), 1e-5), rms_norm(values, torch.ones(128).half(), 1e-5)
    )


def test_no_rows_give_an_empty_result() -> None:
    assert rms_norm(torch.empty(0, 64), torch.ones(64), 1e-5).shape == (0, 64)


def test_a_strided_last_dimension_or_a_wrong_weight_is_refused() -> None:
    with pytest.raises(ValueError, match="last dimension of x must have stride 1"):
        rms_norm(torch.zeros(4, 64).t(), torch.ones(4), 1e-5)
    with pytest.raises(ValueError, match=r"weight has shape \[63\], x ends in 64"):
        rms_norm(torch.zeros(4, 64), torch.ones(63), 1e-5)
    with pytest.raises(ValueError, match=r"residual has dtype torch\.float16, x torch\.float32"):
        add_rms_norm(torch.zeros(4, 64), torch.zeros(4, 64).half(), torch.ones(64), 1e-5)
