"""Rotary embedding, KV-cache write and the fused pass against float64."""

from __future__ import annotations

import pytest
import torch
from weir_kernels.cache import write_kv
from weir_kernels.qkv import norm_rope_write_kv
from weir_kernels.rope import rope

POSITIONS = torch.tensor([0, 1, 17, 499, 3])
SLOTS = torch.tensor([5, -1, 33, 47, 16])


def angles(rotary_dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    frequencies = 10000.0 ** (-torch.arange(0, rotary_dim, 2).double() / rotary_dim)
    table = torch.outer(torch.arange(500).double(), frequencies)
    return table.cos().float(), table.sin().float()


def rotated_float64(x: torch.Tensor, positions: torch.Tensor, rotary_dim: int) -> torch.Tensor:
    """Each pair (i, i + rotary_dim / 2) as one complex number turned by position * theta^(-2i / rotary_dim)."""
    half = rotary_dim // 2
    wide = x.double()
    pairs = torch.complex(wide[..., :half].contiguous(), wide[..., half:rotary_dim].contiguous())
    turn = positions.double()[:, None] * 10000.0 ** (-2.0 * torch.arange(half).double() / rotary_dim)
    turned = pairs * torch.polar(torch.ones_like(turn), turn)[:, None]
    return torch.cat([turned.real, turned.imag, wide[..., rotary_dim:]], dim=-1)


def normed_float64(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight.double()


def packed_qkv(num_heads: int, num_kv_heads: int, head_dim: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    packed = torch.randn(len(POSITIONS), num_heads + 2 * num_kv_heads, head_dim)
    return packed.split_with_sizes((num_heads, num_kv_heads, num_kv_heads), dim=1)


def empty_cache(num_kv_heads: int, head_dim: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.full((3, 16, num_kv_heads, head_dim), float("nan")).to(dtype)


def assert_cache_holds(cache: torch.Tensor, expected: torch.Tensor, **tolerance: float) -> None:
    """Every token of SLOTS is where it belongs, and every other slot is still NaN."""
    flat = cache.float().flatten(0, 1)
    written = SLOTS >= 0
    torch.testing.assert_close(flat[SLOTS[written]].double(), expected.double()[written], **tolerance)
    others = torch.ones(len(flat), dtype=torch.bool)
    others[SLOTS[written]] = False
    assert flat[others].isnan().all()


@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "head_dim", "rotary_dim"),
    [(4, 2, 64, 64), (5, 1, 80, 80), (7, 7, 96, 48), (9, 3, 128, 128), (2, 1, 80, 32), (3, 1, 256, 256)],
)
def test_rope_matches_complex_rotation_for_whole_and_partial_heads(
    num_heads: int, num_kv_heads: int, head_dim: int, rotary_dim: int
) -> None:
    q, k, _ = packed_qkv(num_heads, num_kv_heads, head_dim)
    q_out, k_out = rope(q, k, *angles(rotary_dim), POSITIONS)
    torch.testing.assert_close(q_out.double(), rotated_float64(q, POSITIONS, rotary_dim), rtol=1e-5, atol=3e-5)
    torch.testing.assert_close(k_out.double(), rotated_float64(k, POSITIONS, rotary_dim), rtol=1e-5, atol=3e-5)


@pytest.mark.parametrize(("num_kv_heads", "head_dim"), [(1, 64), (3, 80), (2, 128)])
def test_write_kv_fills_its_slots_and_no_other(num_kv_heads: int, head_dim: int) -> None:
    _, k, v = packed_qkv(1, num_kv_heads, head_dim)
    k_cache, v_cache = empty_cache(num_kv_heads, head_dim), empty_cache(num_kv_heads, head_dim)
    write_kv(k, v, k_cache, v_cache, SLOTS)
    assert_cache_holds(k_cache, k, rtol=0, atol=0)
    assert_cache_holds(v_cache, v, rtol=0, atol=0)


def test_a_float8_cache_holds_scaled_values_clamped_to_its_range() -> None:
    """On values that float8 can hold: the interpreter drops the carry where rounding reaches the next power of two."""
    _, k, v = (x.to(torch.float8_e4m3fn).float() for x in packed_qkv(1, 2, 64))
    k[0] = 1e6
    k_cache, v_cache = (empty_cache(2, 64, torch.float8_e4m3fn) for _ in range(2))
    write_kv(k, v * 4, k_cache, v_cache, SLOTS, k_scale=0.5, v_scale=4.0)
    assert_cache_holds(k_cache, (k / 0.5).clamp(-448, 448), rtol=0, atol=0)
    assert_cache_holds(v_cache, v, rtol=0, atol=0)


def test_slots_beyond_two_to_the_31_elements_are_addressed_in_64_bits() -> None:
    blocks = 2**31 // (16 * 64) + 2
    k_cache, v_cache = (torch.empty((blocks, 16, 1, 64), dtype=torch.float16) for _ in range(2))
    k, v = torch.randn(2, 1, 64).half(), torch.randn(2, 1, 64).half()
    slots = torch.tensor([blocks * 16 - 1, blocks * 16 - 20])
    write_kv(k, v, k_cache, v_cache, slots)
    assert torch.equal(k_cache[-1, 15], k[0])
    assert torch.equal(v_cache[-2, 12], v[1])
    weight = torch.ones(64).half()
    norm_rope_write_kv(k, k, v, weight, weight, 1e-6, *angles(64), torch.tensor([0, 0]), k_cache, v_cache, slots)
    torch.testing.assert_close(k_cache[-1, 15].double(), normed_float64(k[0], weight), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "head_dim", "rotary_dim", "has_norm"),
    [(4, 2, 64, 64, False), (6, 2, 128, 128, True), (5, 5, 80, 32, True), (7, 1, 96, 96, False)],
)
def test_the_fused_pass_is_norm_then_rope_then_write(
    num_heads: int, num_kv_heads: int, head_dim: int, rotary_dim: int, has_norm: bool
) -> None:
    q, k, v = packed_qkv(num_heads, num_kv_heads, head_dim)
    k_cache, v_cache = empty_cache(num_kv_heads, head_dim), empty_cache(num_kv_heads, head_dim)
    q_weight, k_weight = (torch.rand(head_dim), torch.rand(head_dim)) if has_norm else (None, None)
    q_out = norm_rope_write_kv(
        q, k, v, q_weight, k_weight, 1e-6, *angles(rotary_dim), POSITIONS, k_cache, v_cache, SLOTS
    )
    normed_q = normed_float64(q, q_weight) if q_weight is not None else q
    normed_k = normed_float64(k, k_weight) if k_weight is not None else k
    torch.testing.assert_close(q_out.double(), rotated_float64(normed_q, POSITIONS, rotary_dim), rtol=1e-5, atol=3e-5)
    assert_cache_holds(k_cache, rotated_float64(normed_k, POSITIONS, rotary_dim), rtol=1e-5, atol=3e-5)
    assert_cache_holds(v_cache, v, rtol=0, atol=0)


def test_what_the_kernels_would_read_or_write_wrongly_is_refused() -> None:
    q, k, v = packed_qkv(2, 2, 64)
    cos, sin = angles(64)
    with pytest.raises(ValueError, match="last dimension of q must have stride 1"):
        rope(torch.zeros(5, 64, 2).transpose(1, 2), k, cos, sin, POSITIONS)
    with pytest.raises(ValueError, match="128 rotated dimensions in a head of 64"):
        rope(q, k, *angles(128), POSITIONS)
    with pytest.raises(ValueError, match="4 slots for 5 tokens"):
        write_kv(k, v, empty_cache(2, 64), empty_cache(2, 64), SLOTS[:4])
    with pytest.raises(ValueError, match="must have the same strides"):
        write_kv(k, v, empty_cache(2, 64), empty_cache(2, 64).transpose(0, 1).contiguous().transpose(0, 1), SLOTS)
    with pytest.raises(ValueError, match="come together or not at all"):
        norm_rope_write_kv(
            q, k, v, torch.ones(64), None, 1e-6, cos, sin, POSITIONS, empty_cache(2, 64), empty_cache(2, 64), SLOTS
        )
