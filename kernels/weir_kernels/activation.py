"""Gated activations: SwiGLU and GeGLU on a packed [gate | up] projection, one pass.

The file holds device code, whose parameters Triton types at launch, and the typed functions around it.
"""

# ruff: noqa: N803
# mypy: disable-error-code="untyped-decorator,no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from weir_kernels.checks import require
from weir_kernels.launch import Launch

BLOCK = 1024


@triton.jit
def gated_kernel(out_ptr, x_ptr, stride_row: tl.int64, SIZE: tl.constexpr, BLOCK: tl.constexpr, GELU: tl.constexpr):
    """Grid (rows, blocks of SIZE). float32 inside; GELU in its tanh form, as x * sigmoid(2 * inner)."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < SIZE
    gate = tl.load(x_ptr + row * stride_row + columns, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(x_ptr + row * stride_row + SIZE + columns, mask=inside, other=0.0).to(tl.float32)
    # 2 * sqrt(2 / pi) * (x + 0.044715 x^3), of Hendrycks and Gimpel, arXiv 1606.08415.
    logistic = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate) if GELU else gate
    result = gate * tl.sigmoid(logistic) * up
    tl.store(out_ptr + row * SIZE + columns, result.to(out_ptr.dtype.element_ty), mask=inside)


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up. gate_up: [T, 2 * I], gate first, rows at any stride -> [T, I] contiguous, same dtype."""
    return _gated(gate_up, gelu=False)


def gelu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """gelu(gate) * up with the tanh form of GELU; shapes as silu_mul."""
    return _gated(gate_up, gelu=True)


def _gated(gate_up: torch.Tensor, gelu: bool) -> torch.Tensor:
    out = torch.empty((gate_up.shape[0], gate_up.shape[1] // 2), dtype=gate_up.dtype, device=gate_up.device)
    gated_launch(out, gate_up, gelu).run()
    return out


def gated_launch(out: torch.Tensor, gate_up: torch.Tensor, gelu: bool) -> Launch:
    """The launch of either function. Raises ValueError for a layout the kernel would read wrongly."""
    require(gate_up.ndim == 2, f"gate_up must be [tokens, 2 * size], not {list(gate_up.shape)}")
    require(gate_up.shape[1] % 2 == 0, f"gate_up has {gate_up.shape[1]} columns, an odd number")
    require(gate_up.stride(1) == 1, "the last dimension of gate_up must have stride 1")
    size = gate_up.shape[1] // 2
    arguments = {
        "out_ptr": out,
        "x_ptr": gate_up,
        "stride_row": gate_up.stride(0),
        "SIZE": size,
        "BLOCK": BLOCK,
        "GELU": gelu,
    }
    return Launch(gated_kernel, (gate_up.shape[0], triton.cdiv(size, BLOCK)), arguments)
