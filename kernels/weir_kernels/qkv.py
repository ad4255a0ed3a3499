"""From projected q, k and v to attention: QK-norm, rotary embedding and KV-cache write in one pass.

The file holds device code, whose parameters Triton types at launch, and the typed functions around it.
"""

# ruff: noqa: N803
# mypy: disable-error-code="untyped-decorator,no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from weir_kernels.cache import FLOAT8, check_cache, slot_offset, to_cache
from weir_kernels.checks import require
from weir_kernels.launch import Launch
from weir_kernels.rope import HEADS_AT_ONCE, check_rotary, load_angles, load_heads, rotary_constants, store_heads


@triton.jit(do_not_specialize=["positions_ptr", "slots_ptr"])
def norm_rope_write_kv_kernel(
    q_out_ptr,
    k_cache_ptr,
    v_cache_ptr,
    q_ptr,
    k_ptr,
    v_ptr,
    q_weight_ptr,
    k_weight_ptr,
    cos_ptr,
    sin_ptr,
    positions_ptr,
    slots_ptr,
    eps,
    k_inverse_scale,
    v_inverse_scale,
    stride_q_token: tl.int64,
    stride_q_head: tl.int64,
    stride_k_token: tl.int64,
    stride_k_head: tl.int64,
    stride_v_token: tl.int64,
    stride_v_head: tl.int64,
    stride_angles: tl.int64,
    stride_block: tl.int64,
    stride_slot: tl.int64,
    stride_kv_head: tl.int64,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_REST: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HAS_NORM: tl.constexpr,
    IS_FLOAT8: tl.constexpr,
):
    """Grid (tokens, groups of HEADS heads: first those of q, then those of k with their v)."""
    token = tl.program_id(0).to(tl.int64)
    cos, sin = load_angles(cos_ptr, sin_ptr, tl.load(positions_ptr + token), stride_angles, HALF, BLOCK_HALF)
    group = tl.program_id(1)
    q_groups = tl.cdiv(NUM_HEADS, HEADS)
    if group < q_groups:
        heads = (group * HEADS + tl.arange(0, HEADS)).to(tl.int64)
        present = heads < NUM_HEADS
        source = q_ptr + token * stride_q_token + heads * stride_q_head
        first, second, kept = load_heads(
            source, present, q_weight_ptr, eps, HALF, BLOCK_HALF, HEAD_DIM, BLOCK_REST, HAS_NORM
        )
        target = q_out_ptr + (token * NUM_HEADS + heads) * HEAD_DIM
        rotated_first = first * cos - second * sin
        rotated_second = second * cos + first * sin
        store_heads(target, present, rotated_first, rotated_second, kept, HALF, BLOCK_HALF, HEAD_DIM, BLOCK_REST)
    else:
        slot = tl.load(slots_ptr + token).to(tl.int64)
        heads = ((group - q_groups) * HEADS + tl.arange(0, HEADS)).to(tl.int64)
        # A token of slot -1 (padding) writes nothing, not even to the null block.
        present = heads < tl.where(slot >= 0, NUM_KV_HEADS, 0)
        offsets = slot_offset(slot, stride_block, stride_slot, BLOCK_SIZE) + heads * stride_kv_head
        source = k_ptr + token * stride_k_token + heads * stride_k_head
        first, second, kept = load_heads(
            source, present, k_weight_ptr, eps, HALF, BLOCK_HALF, HEAD_DIM, BLOCK_REST, HAS_NORM
        )
        store_heads(
            k_cache_ptr + offsets,
            present,
            to_cache(first * cos - second * sin, k_inverse_scale, IS_FLOAT8),
            to_cache(second * cos + first * sin, k_inverse_scale, IS_FLOAT8),
            to_cache(kept, k_inverse_scale, IS_FLOAT8),
            HALF,
            BLOCK_HALF,
            HEAD_DIM,
            BLOCK_REST,
        )
        source = v_ptr + token * stride_v_token + heads * stride_v_head
        first, second, kept = load_heads(
            source, present, k_weight_ptr, eps, HALF, BLOCK_HALF, HEAD_DIM, BLOCK_REST, False
        )
        store_heads(
            v_cache_ptr + offsets,
            present,
            to_cache(first, v_inverse_scale, IS_FLOAT8),
            to_cache(second, v_inverse_scale, IS_FLOAT8),
            to_cache(kept, v_inverse_scale, IS_FLOAT8),
            HALF,
            BLOCK_HALF,
            HEAD_DIM,
            BLOCK_REST,
        )


def norm_rope_write_kv(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    q_weight: torch.Tensor | None,
    k_weight: torch.Tensor | None,
    eps: float,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
) -> torch.Tensor:
    """QK-norm (with both weights or neither), rotary embedding and cache write in one pass over q, k and v.

    The same as rms_norm of each head of q and k, `rope`, then `write_kv`, without rounding in between.
    q: [T, Hq, D], k, v: [T, Hkv, D], strided views of one projection are fine; weights: [D].
    Returns the new q, contiguous. Raises ValueError for a layout the kernel would read wrongly.
    """
    q_out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    norm_rope_write_kv_launch(
        q_out, q, k, v, q_weight, k_weight, eps, cos, sin, positions, k_cache, v_cache, slot_mapping, k_scale, v_scale
    ).run()
    return q_out


def norm_rope_write_kv_launch(
    q_out: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    q_weight: torch.Tensor | None,
    k_weight: torch.Tensor | None,
    eps: float,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    k_scale: float,
    v_scale: float,
) -> Launch:
    """The launch of `norm_rope_write_kv`."""
    check_rotary(q, k, cos, sin, positions)
    check_cache(k, v, k_cache, v_cache, slot_mapping)
    require((q_weight is None) == (k_weight is None), "q_weight and k_weight come together or not at all")
    for name, weight in (("q_weight", q_weight), ("k_weight", k_weight)):
        require(
            weight is None or (weight.shape == (q.shape[2],) and weight.stride(0) == 1),
            f"{name} must be {q.shape[2]} contiguous values",
        )
    num_heads, num_kv_heads = q.shape[1], k.shape[1]
    arguments = {
        "q_out_ptr": q_out,
        "k_cache_ptr": k_cache,
        "v_cache_ptr": v_cache,
        "q_ptr": q,
        "k_ptr": k,
        "v_ptr": v,
        "q_weight_ptr": q_weight,
        "k_weight_ptr": k_weight,
        "cos_ptr": cos,
        "sin_ptr": sin,
        "positions_ptr": positions,
        "slots_ptr": slot_mapping,
        "eps": eps,
        "k_inverse_scale": 1.0 / k_scale,
        "v_inverse_scale": 1.0 / v_scale,
        "stride_q_token": q.stride(0),
        "stride_q_head": q.stride(1),
        "stride_k_token": k.stride(0),
        "stride_k_head": k.stride(1),
        "stride_v_token": v.stride(0),
        "stride_v_head": v.stride(1),
        "stride_angles": cos.stride(0),
        "stride_block": k_cache.stride(0),
        "stride_slot": k_cache.stride(1),
        "stride_kv_head": k_cache.stride(2),
        "NUM_HEADS": num_heads,
        "NUM_KV_HEADS": num_kv_heads,
        "BLOCK_SIZE": k_cache.shape[1],
        "HAS_NORM": q_weight is not None,
        "IS_FLOAT8": k_cache.dtype == FLOAT8,
    } | rotary_constants(q.shape[2], cos.shape[1])
    groups = triton.cdiv(num_heads, HEADS_AT_ONCE) + triton.cdiv(num_kv_heads, HEADS_AT_ONCE)
    return Launch(norm_rope_write_kv_kernel, (q.shape[0], groups), arguments)
