"""Writing keys and values into the paged cache.

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

FLOAT8 = torch.float8_e4m3fn
FLOAT8_MAX = tl.constexpr(448.0)


@triton.jit
def to_cache(x, inverse_scale, IS_FLOAT8: tl.constexpr):
    """What is stored for x: x / scale for a float8 cache, clamped, because e4m3 has no infinity and would store NaN."""
    if IS_FLOAT8:
        x = tl.minimum(tl.maximum(x * inverse_scale, -FLOAT8_MAX), FLOAT8_MAX)
    return x


@triton.jit
def slot_offset(slot, stride_block, stride_slot, BLOCK_SIZE: tl.constexpr):
    """Where a slot starts in the cache, in 64 bits."""
    return slot // BLOCK_SIZE * stride_block + slot % BLOCK_SIZE * stride_slot


@triton.jit(do_not_specialize=["slots_ptr"])
def write_kv_kernel(
    k_cache_ptr,
    v_cache_ptr,
    k_ptr,
    v_ptr,
    slots_ptr,
    k_inverse_scale,
    v_inverse_scale,
    stride_k_token: tl.int64,
    stride_k_head: tl.int64,
    stride_v_token: tl.int64,
    stride_v_head: tl.int64,
    stride_block: tl.int64,
    stride_slot: tl.int64,
    stride_kv_head: tl.int64,
    NUM_KV_HEADS: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    IS_FLOAT8: tl.constexpr,
):
    """Grid (tokens,). A token of slot -1 (padding) writes nothing, not even to the null block."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_ptr + token).to(tl.int64)
    if slot < 0:
        return
    heads = tl.arange(0, BLOCK_HEADS).to(tl.int64)[:, None]
    dims = tl.arange(0, BLOCK_D)[None, :]
    inside = (heads < NUM_KV_HEADS) & (dims < HEAD_DIM)
    k = tl.load(k_ptr + token * stride_k_token + heads * stride_k_head + dims, mask=inside).to(tl.float32)
    v = tl.load(v_ptr + token * stride_v_token + heads * stride_v_head + dims, mask=inside).to(tl.float32)
    target = slot_offset(slot, stride_block, stride_slot, BLOCK_SIZE) + heads * stride_kv_head + dims
    dtype = k_cache_ptr.dtype.element_ty
    tl.store(k_cache_ptr + target, to_cache(k, k_inverse_scale, IS_FLOAT8).to(dtype), mask=inside)
    tl.store(v_cache_ptr + target, to_cache(v, v_inverse_scale, IS_FLOAT8).to(dtype), mask=inside)


def write_kv(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
) -> None:
    """Stores each token's K and V in its slot, in place; slot -1 stores nothing.

    k, v: [T, Hkv, D]; caches: [num_blocks, block_size, Hkv, D] of equal strides; slot_mapping: [T] int64 = block *
    block_size + offset. A float8_e4m3fn cache stores k / k_scale and v / v_scale, clamped to +-448.
    Raises ValueError for a layout the kernel would read wrongly.
    """
    write_kv_launch(k, v, k_cache, v_cache, slot_mapping, k_scale, v_scale).run()


def write_kv_launch(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    k_scale: float,
    v_scale: float,
) -> Launch:
    """The launch of `write_kv`."""
    check_cache(k, v, k_cache, v_cache, slot_mapping)
    arguments = {
        "k_cache_ptr": k_cache,
        "v_cache_ptr": v_cache,
        "k_ptr": k,
        "v_ptr": v,
        "slots_ptr": slot_mapping,
        "k_inverse_scale": 1.0 / k_scale,
        "v_inverse_scale": 1.0 / v_scale,
        "stride_k_token": k.stride(0),
        "stride_k_head": k.stride(1),
        "stride_v_token": v.stride(0),
        "stride_v_head": v.stride(1),
        "stride_block": k_cache.stride(0),
        "stride_slot": k_cache.stride(1),
        "stride_kv_head": k_cache.stride(2),
        "NUM_KV_HEADS": k.shape[1],
        "BLOCK_HEADS": triton.next_power_of_2(k.shape[1]),
        "HEAD_DIM": k.shape[2],
        "BLOCK_D": triton.next_power_of_2(k.shape[2]),
        "BLOCK_SIZE": k_cache.shape[1],
        "IS_FLOAT8": k_cache.dtype == FLOAT8,
    }
    return Launch(write_kv_kernel, (slot_mapping.shape[0],), arguments)


def check_cache(
    k: torch.Tensor, v: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, slot_mapping: torch.Tensor
) -> None:
    """Raises ValueError unless the cache kernels write these tensors rightly."""
    require(k.ndim == 3 and v.shape == k.shape, f"k and v must be [tokens, heads, head_dim], not {k.shape}, {v.shape}")
    require(
        k_cache.ndim == 4 and k_cache.shape[2:] == k.shape[1:], f"k is {list(k.shape)}, k_cache {list(k_cache.shape)}"
    )
    require(v_cache.shape == k_cache.shape, f"v_cache has shape {list(v_cache.shape)}, k_cache {list(k_cache.shape)}")
    require(v_cache.stride() == k_cache.stride(), "k_cache and v_cache must have the same strides")
    require(v_cache.dtype == k_cache.dtype, f"k_cache has dtype {k_cache.dtype}, v_cache {v_cache.dtype}")
    require(k_cache.dtype in (k.dtype, FLOAT8), f"the cache has dtype {k_cache.dtype}; allowed: {k.dtype}, {FLOAT8}")
    require(slot_mapping.shape == (k.shape[0],), f"{slot_mapping.shape[0]} slots for {k.shape[0]} tokens")
    for name, tensor in (("k", k), ("v", v), ("k_cache", k_cache), ("slot_mapping", slot_mapping)):
        require(tensor.stride(-1) == 1, f"the last dimension of {name} must have stride 1")
