"""Rotary position embedding with the NeoX pairing (dimension i with i + rotary_dim / 2), whole or partial.

The file holds device code, whose parameters Triton types at launch, and the typed function around it.
"""

# ruff: noqa: N803
# mypy: disable-error-code="untyped-decorator,no-untyped-def"

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from weir_kernels.checks import require
from weir_kernels.launch import Launch

HEADS_AT_ONCE = 4


@triton.jit
def load_heads(
    head_ptrs,
    present,
    weight_ptr,
    eps,
    HALF: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_REST: tl.constexpr,
    HAS_NORM: tl.constexpr,
):
    """The two halves to rotate [heads, BLOCK_HALF] and the rest [heads, BLOCK_REST], float32, normed where wanted.

    head_ptrs: [heads] pointers to each head's first element; absent heads read as 0.
    """
    half = tl.arange(0, BLOCK_HALF)
    rest = 2 * HALF + tl.arange(0, BLOCK_REST)
    half_inside = present[:, None] & (half < HALF)[None, :]
    rest_inside = present[:, None] & (rest < HEAD_DIM)[None, :]
    first = tl.load(head_ptrs[:, None] + half[None, :], mask=half_inside, other=0.0).to(tl.float32)
    second = tl.load(head_ptrs[:, None] + HALF + half[None, :], mask=half_inside, other=0.0).to(tl.float32)
    kept = tl.load(head_ptrs[:, None] + rest[None, :], mask=rest_inside, other=0.0).to(tl.float32)
    if HAS_NORM:
        squares = tl.sum(first * first, 1) + tl.sum(second * second, 1) + tl.sum(kept * kept, 1)
        inverse = (1.0 / tl.sqrt(squares / HEAD_DIM + eps))[:, None]
        first_weight = tl.load(weight_ptr + half, mask=half < HALF, other=0.0).to(tl.float32)
        second_weight = tl.load(weight_ptr + HALF + half, mask=half < HALF, other=0.0).to(tl.float32)
        kept_weight = tl.load(weight_ptr + rest, mask=rest < HEAD_DIM, other=0.0).to(tl.float32)
        first = first * inverse * first_weight[None, :]
        second = second * inverse * second_weight[None, :]
        kept = kept * inverse * kept_weight[None, :]
    return first, second, kept


@triton.jit
def load_angles(cos_ptr, sin_ptr, position, stride_angles, HALF: tl.constexpr, BLOCK_HALF: tl.constexpr):
    """cos and sin [1, BLOCK_HALF] of a position's angles."""
    half = tl.arange(0, BLOCK_HALF)
    offset = position.to(tl.int64) * stride_angles
    cos = tl.load(cos_ptr + offset + half, mask=half < HALF, other=0.0).to(tl.float32)
    sin = tl.load(sin_ptr + offset + half, mask=half < HALF, other=0.0).to(tl.float32)
    return cos[None, :], sin[None, :]


@triton.jit
def store_heads(
    head_ptrs,
    present,
    first,
    second,
    kept,
    HALF: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_REST: tl.constexpr,
):
    """The reverse of load_heads, in the dtype of the pointers."""
    dtype: tl.constexpr = head_ptrs.dtype.element_ty
    half = tl.arange(0, BLOCK_HALF)
    rest = 2 * HALF + tl.arange(0, BLOCK_REST)
    half_inside = present[:, None] & (half < HALF)[None, :]
    tl.store(head_ptrs[:, None] + half[None, :], first.to(dtype), mask=half_inside)
    tl.store(head_ptrs[:, None] + HALF + half[None, :], second.to(dtype), mask=half_inside)
    tl.store(head_ptrs[:, None] + rest[None, :], kept.to(dtype), mask=present[:, None] & (rest < HEAD_DIM)[None, :])


@triton.jit(do_not_specialize=["positions_ptr"])
def rope_kernel(
    q_out_ptr,
    k_out_ptr,
    q_ptr,
    k_ptr,
    cos_ptr,
    sin_ptr,
    positions_ptr,
    stride_q_token: tl.int64,
    stride_q_head: tl.int64,
    stride_k_token: tl.int64,
    stride_k_head: tl.int64,
    stride_angles: tl.int64,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_REST: tl.constexpr,
    HEADS: tl.constexpr,
):
    """Grid (tokens, groups of HEADS heads: first those of q, then those of k). Results are contiguous."""
    token = tl.program_id(0).to(tl.int64)
    cos, sin = load_angles(cos_ptr, sin_ptr, tl.load(positions_ptr + token), stride_angles, HALF, BLOCK_HALF)
    group = tl.program_id(1)
    q_groups = tl.cdiv(NUM_HEADS, HEADS)
    # Each branch loads and stores by itself: no pointer leaves a branch, which not every compiler can follow.
    if group < q_groups:
        heads = group * HEADS + tl.arange(0, HEADS)
        source = q_ptr + token * stride_q_token + heads.to(tl.int64) * stride_q_head
        target = q_out_ptr + (token * NUM_HEADS + heads) * HEAD_DIM
        _rotate_heads(target, source, heads < NUM_HEADS, cos, sin, HALF, BLOCK_HALF, HEAD_DIM, BLOCK_REST)
    else:
        heads = (group - q_groups) * HEADS + tl.arange(0, HEADS)
        source = k_ptr + token * stride_k_token + heads.to(tl.int64) * stride_k_head
        target = k_out_ptr + (token * NUM_KV_HEADS + heads) * HEAD_DIM
        _rotate_heads(target, source, heads < NUM_KV_HEADS, cos, sin, HALF, BLOCK_HALF, HEAD_DIM, BLOCK_REST)


@triton.jit
def _rotate_heads(
    target,
    source,
    present,
    cos,
    sin,
    HALF: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_REST: tl.constexpr,
):
    first, second, kept = load_heads(source, present, source, 0.0, HALF, BLOCK_HALF, HEAD_DIM, BLOCK_REST, False)
    rotated_first = first * cos - second * sin
    rotated_second = second * cos + first * sin
    store_heads(target, present, rotated_first, rotated_second, kept, HALF, BLOCK_HALF, HEAD_DIM, BLOCK_REST)


def rope(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, positions: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotates the first 2 * R dimensions of every head by its token's position; the others pass unchanged.

    q: [T, Hq, D], k: [T, Hkv, D], unit last stride; cos, sin: [max_positions, R] of one stride; positions: [T] int64.
    Returns new contiguous (q, k). Raises ValueError for a layout the kernel would read wrongly.
    """
    q_out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    k_out = torch.empty(k.shape, dtype=k.dtype, device=k.device)
    rope_launch(q_out, k_out, q, k, cos, sin, positions).run()
    return q_out, k_out


def rope_launch(
    q_out: torch.Tensor,
    k_out: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
) -> Launch:
    """The launch of `rope`."""
    check_rotary(q, k, cos, sin, positions)
    num_heads, num_kv_heads = q.shape[1], k.shape[1]
    arguments = {
        "q_out_ptr": q_out,
        "k_out_ptr": k_out,
        "q_ptr": q,
        "k_ptr": k,
        "cos_ptr": cos,
        "sin_ptr": sin,
        "positions_ptr": positions,
        "stride_q_token": q.stride(0),
        "stride_q_head": q.stride(1),
        "stride_k_token": k.stride(0),
        "stride_k_head": k.stride(1),
        "stride_angles": cos.stride(0),
        "NUM_HEADS": num_heads,
        "NUM_KV_HEADS": num_kv_heads,
    } | rotary_constants(q.shape[2], cos.shape[1])
    groups = triton.cdiv(num_heads, HEADS_AT_ONCE) + triton.cdiv(num_kv_heads, HEADS_AT_ONCE)
    return Launch(rope_kernel, (q.shape[0], groups), arguments)


def rotary_constants(head_dim: int, half: int) -> dict[str, Any]:
    """How a head is cut: two rotated halves and a rest, each in a block of a power of two."""
    return {
        "HALF": half,
        "BLOCK_HALF": triton.next_power_of_2(half),
        "HEAD_DIM": head_dim,
        "BLOCK_REST": triton.next_power_of_2(max(1, head_dim - 2 * half)),
        "HEADS": HEADS_AT_ONCE,
    }


def check_rotary(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, positions: torch.Tensor
) -> None:
    """Raises ValueError unless the rotary kernels read these tensors rightly."""
    require(q.ndim == 3 and k.ndim == 3, f"q and k must be [tokens, heads, head_dim], not {q.ndim} and {k.ndim} dims")
    require(q.shape[0] == k.shape[0] == positions.shape[0], "q, k and positions must have one entry a token")
    require(q.shape[2] == k.shape[2], f"q has head_dim {q.shape[2]}, k {k.shape[2]}")
    require(cos.shape == sin.shape and cos.stride() == sin.stride(), "cos and sin must have one shape and strides")
    require(2 * cos.shape[1] <= q.shape[2], f"{2 * cos.shape[1]} rotated dimensions in a head of {q.shape[2]}")
    for name, tensor in (("q", q), ("k", k), ("cos", cos), ("positions", positions)):
        require(tensor.stride(-1) == 1, f"the last dimension of {name} must have stride 1")
