"""The reference operations against hand-worked values and float64 formulas written another way."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from weir_kernels import reference

from tests.unit.kernels.batches import PagedCase, paged_case

CASES = [
    [(1, 1), (1, 9), (1, 8)],
    [(5, 5), (3, 17), (8, 12)],
    [(1, 30), (1, 2), (12, 12), (1, 6), (7, 25)],
]


def expected_attention(case: PagedCase, scale: float, window: int | None) -> torch.Tensor:
    """SDPA in float64 with an explicit mask, one sequence at a time, on the tensors that never were in a cache."""
    out = []
    for row, (keys, values) in enumerate(zip(case.keys, case.values, strict=True)):
        start, stop = case.batch.cu_seqlens[row : row + 2].tolist()
        q = case.q[start:stop].double().transpose(0, 1)
        kv_len, count = len(keys), stop - start
        allowed = torch.ones(count, kv_len, dtype=torch.bool).tril(kv_len - count)
        if window is not None:
            allowed &= torch.ones(count, kv_len, dtype=torch.bool).triu(kv_len - count - window + 1)
        group = q.shape[0] // keys.shape[1]
        k, v = (x.double().transpose(0, 1).repeat_interleave(group, 0) for x in (keys, values))
        out.append(F.scaled_dot_product_attention(q, k, v, attn_mask=allowed, scale=scale).transpose(0, 1))
    return torch.cat(out)


@pytest.mark.parametrize("window", [None, 1, 3, 8, 1000])
@pytest.mark.parametrize("sequences", CASES)
@pytest.mark.parametrize("heads", [(6, 2), (4, 4), (5, 1)])
def test_attention_equals_masked_sdpa(
    sequences: list[tuple[int, int]], heads: tuple[int, int], window: int | None
) -> None:
    case = paged_case(sequences, heads=heads)
    actual = reference.paged_attention(case.q, case.k_cache, case.v_cache, case.batch, 0.3, window)
    torch.testing.assert_close(actual.double(), expected_attention(case, 0.3, window), rtol=0, atol=2e-6)


def test_attention_over_equal_keys_is_the_mean_of_the_visible_values() -> None:
    case = paged_case([(2, 3)], heads=(1, 1), head_dim=2)
    case.k_cache[:] = 1.0
    values = torch.tensor([[3.0, 0.0], [6.0, 0.0], [0.0, 9.0]])
    case.v_cache[case.batch.block_tables[0, 0].item(), :3, 0] = values
    out = reference.paged_attention(case.q, case.k_cache, case.v_cache, case.batch, 1.0)
    # The first query sees positions 0 and 1, the second all three.
    torch.testing.assert_close(out[:, 0], torch.tensor([[4.5, 0.0], [3.0, 3.0]]))
    windowed = reference.paged_attention(case.q, case.k_cache, case.v_cache, case.batch, 1.0, sliding_window=2)
    torch.testing.assert_close(windowed[:, 0], torch.tensor([[4.5, 0.0], [3.0, 4.5]]))


def test_attention_of_an_empty_sequence_is_zero() -> None:
    case = paged_case([(1, 4), (1, 0), (1, 2)])
    out = reference.paged_attention(case.q, case.k_cache, case.v_cache, case.batch, 1.0)
    assert torch.equal(out[1], torch.zeros(6, 16))
    assert out.isfinite().all()


def test_rms_norm_by_hand() -> None:
    x = torch.tensor([[3.0, 4.0]])
    # mean of squares (9 + 16) / 2 = 12.5.
    expected = torch.tensor([[2 * 3.0, 0.5 * 4.0]]) / math.sqrt(12.5 + 0.5)
    torch.testing.assert_close(reference.rms_norm(x, torch.tensor([2.0, 0.5]), 0.5), expected)


def test_rms_norm_of_heads_norms_each_head() -> None:
    x, weight = torch.randn(5, 3, 8), torch.randn(8)
    expected = F.rms_norm(x.double(), (8,), weight.double(), 1e-6)
    torch.testing.assert_close(reference.rms_norm(x, weight, 1e-6).double(), expected, rtol=0, atol=1e-6)


def test_rms_norm_in_bfloat16_is_the_float32_result_rounded_once() -> None:
    x, weight = torch.randn(4, 64).bfloat16(), torch.randn(64).bfloat16()
    expected = F.rms_norm(x.float(), (64,), weight.float(), 1e-5).bfloat16()
    assert torch.equal(reference.rms_norm(x, weight, 1e-5), expected)


def test_add_rms_norm_returns_the_norm_of_the_rounded_sum() -> None:
    x, residual, weight = torch.randn(3, 32).bfloat16(), torch.randn(3, 32).bfloat16(), torch.randn(32).bfloat16()
    normed, new_residual = reference.add_rms_norm(x, residual, weight, 1e-5)
    assert torch.equal(new_residual, x + residual)
    assert torch.equal(normed, reference.rms_norm(x + residual, weight, 1e-5))


def test_rope_turns_pairs_as_complex_numbers() -> None:
    positions = torch.tensor([0, 3, 7])
    angles = torch.outer(torch.arange(8.0), torch.tensor([1.0, 0.1, 0.01]))
    q, k = torch.randn(3, 2, 6), torch.randn(3, 1, 6)
    turned_q, turned_k = reference.rope(q, k, angles.cos(), angles.sin(), positions)
    turn = torch.polar(torch.ones(3, 3), angles[positions]).unsqueeze(1)
    for before, after in ((q, turned_q), (k, turned_k)):
        expected = torch.complex(before[..., :3], before[..., 3:]) * turn
        torch.testing.assert_close(torch.complex(after[..., :3], after[..., 3:]), expected)
    assert torch.equal(turned_q[0], q[0])


def test_write_kv_fills_the_named_slots_and_no_other() -> None:
    k_cache, v_cache = torch.zeros(3, 4, 1, 2), torch.zeros(3, 4, 1, 2)
    k, v = torch.ones(3, 1, 2), torch.full((3, 1, 2), 2.0)
    reference.write_kv(k, v, k_cache, v_cache, torch.tensor([5, -1, 11]))
    written = k_cache[..., 0, 0].nonzero().tolist()
    assert written == [[1, 1], [2, 3]]
    assert torch.equal(v_cache, 2 * k_cache)


def test_norm_rope_write_kv_is_the_three_steps_in_order() -> None:
    q, k, v = torch.randn(2, 3, 4), torch.randn(2, 1, 4), torch.randn(2, 1, 4)
    weight, cos, sin = torch.randn(4), torch.randn(9, 2), torch.randn(9, 2)
    positions, slots = torch.tensor([8, 2]), torch.tensor([3, 0])
    k_cache, v_cache = torch.zeros(1, 4, 1, 4), torch.zeros(1, 4, 1, 4)
    out = reference.norm_rope_write_kv(q, k, v, weight, weight, 1e-6, cos, sin, positions, k_cache, v_cache, slots)
    normed_q, normed_k = reference.rms_norm(q, weight, 1e-6), reference.rms_norm(k, weight, 1e-6)
    expected_q, expected_k = reference.rope(normed_q, normed_k, cos, sin, positions)
    assert torch.equal(out, expected_q)
    assert torch.equal(k_cache[0, [3, 0]], expected_k)
    assert torch.equal(v_cache[0, [3, 0]], v)


def test_silu_mul_by_hand() -> None:
    gate_up = torch.tensor([[0.0, 2.0, 5.0, 3.0]])
    # silu(0) * 5 and silu(2) * 3.
    expected = torch.tensor([[0.0, 2.0 / (1.0 + math.exp(-2.0)) * 3.0]])
    torch.testing.assert_close(reference.silu_mul(gate_up), expected)
