"""SwiGLU and GeGLU against float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from weir_kernels.activation import gelu_mul, silu_mul


@pytest.mark.parametrize("size", [1, 96, 1024, 1536])
def test_silu_mul_and_gelu_mul_match_float64(size: int) -> None:
    gate_up = torch.randn(5, 2 * size) * 4
    gate, up = gate_up.double().chunk(2, dim=1)
    torch.testing.assert_close(silu_mul(gate_up).double(), F.silu(gate) * up, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(gelu_mul(gate_up).double(), F.gelu(gate, approximate="tanh") * up, rtol=1e-5, atol=1e-6)


def test_strided_rows_are_read_in_place_and_large_gates_do_not_overflow() -> None:
    wide = torch.full((4, 400), float("nan"))
    wide[:, :128] = torch.linspace(-200.0, 200.0, 512).view(4, 128)
    gate, up = wide[:, :128].double().chunk(2, dim=1)
    torch.testing.assert_close(silu_mul(wide[:, :128]).double(), F.silu(gate) * up, rtol=1e-5, atol=1e-6)


def test_rows_beyond_two_to_the_31_elements_are_addressed_in_64_bits() -> None:
    values = torch.randn(3, 64).half()
    rows = torch.empty(2**31 + 64, dtype=torch.float16).as_strided((3, 64), (2**30, 1))
    rows.copy_(values)
    assert torch.equal(silu_mul(rows), silu_mul(values))


def test_an_odd_width_or_a_strided_last_dimension_is_refused() -> None:
    with pytest.raises(ValueError, match="7 columns, an odd number"):
        silu_mul(torch.zeros(2, 7))
    with pytest.raises(ValueError, match="must have stride 1"):
        silu_mul(torch.zeros(8, 2).t())
