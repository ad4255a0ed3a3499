"""RMSNorm, and RMSNorm with the residual addition before it: one row a program, one read of the row.

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

MAX_HIDDEN = 32768


@triton.jit
def rms_norm_kernel(
    out_ptr,
    new_residual_ptr,
    x_ptr,
    residual_ptr,
    weight_ptr,
    eps,
    stride_outer: tl.int64,
    stride_inner: tl.int64,
    stride_residual: tl.int64,
    INNER: tl.constexpr,
    HIDDEN: tl.constexpr,
    BLOCK: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
):
    """Grid (rows,). Row r of x is at (r // INNER) * stride_outer + (r % INNER) * stride_inner; results are contiguous.

    float32 inside; with a residual the norm reads the sum after rounding, as the next layer will.
    """
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < HIDDEN
    x_row = x_ptr + (row // INNER) * stride_outer + (row % INNER) * stride_inner
    x = tl.load(x_row + columns, mask=inside, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        x += tl.load(residual_ptr + row * stride_residual + columns, mask=inside, other=0.0).to(tl.float32)
        rounded = x.to(new_residual_ptr.dtype.element_ty)
        tl.store(new_residual_ptr + row * HIDDEN + columns, rounded, mask=inside)
        x = rounded.to(tl.float32)
    inverse = 1.0 / tl.sqrt(tl.sum(x * x, 0) / HIDDEN + eps)
    weight = tl.load(weight_ptr + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * HIDDEN + columns, (x * inverse * weight).to(out_ptr.dtype.element_ty), mask=inside)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension.

    x: [T, H] or [T, N, H], any strides but 1 in the last dimension, H <= 32768. weight: [H] contiguous.
    Returns a contiguous tensor of x's shape and dtype. Raises ValueError for other layouts.
    """
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    rms_norm_launch(out, x, weight, eps).run()
    return out


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns (rms_norm(x + residual), x + residual), both new. x, residual: [T, H] of one dtype; else as rms_norm."""
    require(x.ndim == 2, f"x must be [tokens, hidden], not {list(x.shape)}")
    require(residual.shape == x.shape, f"residual has shape {list(residual.shape)}, x {list(x.shape)}")
    require(residual.dtype == x.dtype, f"residual has dtype {residual.dtype}, x {x.dtype}")
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    new_residual = torch.empty_like(out)
    rms_norm_launch(out, x, weight, eps, residual, new_residual).run()
    return out, new_residual


def rms_norm_launch(
    out: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    residual: torch.Tensor | None = None,
    new_residual: torch.Tensor | None = None,
) -> Launch:
    """The launch of either function; residual and new_residual come together or not at all."""
    hidden = x.shape[-1]
    require(x.ndim in (2, 3), f"x must have 2 or 3 dimensions, not {x.ndim}")
    require(hidden <= MAX_HIDDEN, f"hidden size {hidden} is over {MAX_HIDDEN}")
    require(weight.shape == (hidden,), f"weight has shape {list(weight.shape)}, x ends in {hidden}")
    for name, tensor in (("x", x), ("weight", weight), ("residual", residual)):
        require(tensor is None or tensor.stride(-1) == 1, f"the last dimension of {name} must have stride 1")
    block = triton.next_power_of_2(hidden)
    arguments = {
        "out_ptr": out,
        "new_residual_ptr": new_residual,
        "x_ptr": x,
        "residual_ptr": residual,
        "weight_ptr": weight,
        "eps": eps,
        "stride_outer": x.stride(0),
        "stride_inner": x.stride(1) if x.ndim == 3 else 0,
        "stride_residual": residual.stride(0) if residual is not None else 0,
        "INNER": x.shape[1] if x.ndim == 3 else 1,
        "HIDDEN": hidden,
        "BLOCK": block,
        "HAS_RESIDUAL": residual is not None,
    }
    rows = x.shape[0] * arguments["INNER"]
    return Launch(rms_norm_kernel, (rows,), arguments, num_warps=min(16, max(1, block // 512)))
