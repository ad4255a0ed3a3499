"""The batched torch operations against the reference, over every shape of ragged batch."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from weir_kernels import reference, torch_ops

from tests.unit.kernels.batches import paged_case

MIXED = [(1, 1), (1, 33), (1, 32), (1, 300), (1, 17), (5, 18), (40, 40), (9, 63), (1, 44)]


@pytest.mark.parametrize("window", [None, 1, 7, 32, 64, 5000])
@pytest.mark.parametrize("block_size", [1, 16, 32])
def test_a_mixed_batch_gives_what_the_reference_gives(block_size: int, window: int | None) -> None:
    case = paged_case(MIXED, block_size=block_size)
    arguments = (case.q, case.k_cache, case.v_cache, case.batch, 0.25, window)
    actual, expected = torch_ops.PagedAttention()(*arguments), reference.paged_attention(*arguments)
    torch.testing.assert_close(actual, expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize("group", [1, 2, 3, 4, 5, 7, 8])
def test_every_size_of_query_group_reads_its_own_kv_head(group: int) -> None:
    case = paged_case([(1, 9), (1, 4), (6, 11)], heads=(2 * group, 2), head_dim=8)
    arguments = (case.q, case.k_cache, case.v_cache, case.batch, 0.35)
    torch.testing.assert_close(
        torch_ops.PagedAttention()(*arguments), reference.paged_attention(*arguments), rtol=0, atol=2e-6
    )


def test_a_window_far_shorter_than_the_chunk_leaves_no_row_without_keys() -> None:
    case = paged_case([(640, 640), (600, 1300)], heads=(2, 1), block_size=32)
    arguments = (case.q, case.k_cache, case.v_cache, case.batch, 0.25, 10)
    torch.testing.assert_close(
        torch_ops.PagedAttention()(*arguments), reference.paged_attention(*arguments), rtol=0, atol=2e-6
    )


def test_sequences_without_kv_get_zeros() -> None:
    case = paged_case([(1, 0), (1, 5), (1, 0)])
    out = torch_ops.PagedAttention()(case.q, case.k_cache, case.v_cache, case.batch, 1.0)
    assert torch.equal(out[[0, 2]], torch.zeros(2, 6, 16))
    assert out.isfinite().all()


def test_a_plan_is_not_kept_for_the_next_batch() -> None:
    attention = torch_ops.PagedAttention()
    for sequences in ([(1, 5), (1, 60)], [(1, 60), (1, 5)], [(2, 5), (3, 60)]):
        case = paged_case(sequences)
        arguments = (case.q, case.k_cache, case.v_cache, case.batch, 0.25)
        torch.testing.assert_close(attention(*arguments), reference.paged_attention(*arguments), rtol=0, atol=2e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_stays_within_its_rounding(dtype: torch.dtype) -> None:
    case = paged_case(MIXED, dtype=dtype)
    arguments = (case.q, case.k_cache, case.v_cache, case.batch, 0.25)
    actual, expected = torch_ops.PagedAttention()(*arguments), reference.paged_attention(*arguments)
    assert actual.dtype == dtype
    torch.testing.assert_close(actual.float(), expected.float(), rtol=0, atol=4 * torch.finfo(dtype).eps)


@settings(max_examples=60, deadline=None)
@given(
    decodes=st.lists(st.integers(1, 70), max_size=8),
    chunks=st.lists(st.tuples(st.integers(2, 20), st.integers(0, 40)), max_size=4),
    window=st.none() | st.integers(1, 80),
    block_size=st.sampled_from([1, 2, 8, 16]),
)
def test_any_ragged_batch_gives_what_the_reference_gives(
    decodes: list[int], chunks: list[tuple[int, int]], window: int | None, block_size: int
) -> None:
    sequences = [(1, kv_len) for kv_len in decodes] + [(count, count + before) for count, before in chunks]
    assume(sequences)
    case = paged_case(sequences, heads=(4, 2), head_dim=8, block_size=block_size)
    arguments = (case.q, case.k_cache, case.v_cache, case.batch, 0.35, window)
    actual, expected = torch_ops.PagedAttention()(*arguments), reference.paged_attention(*arguments)
    torch.testing.assert_close(actual, expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize("slots", [[5, 0, 7], [5, -1, 7], [-1, -1, -1]])
def test_write_kv_writes_what_the_reference_writes(slots: list[int]) -> None:
    k, v = torch.randn(3, 2, 4), torch.randn(3, 2, 4)
    caches = [torch.zeros(2, 4, 2, 4) for _ in range(4)]
    torch_ops.write_kv(k, v, *caches[:2], torch.tensor(slots))
    reference.write_kv(k, v, *caches[2:], torch.tensor(slots))
    assert torch.equal(caches[0], caches[2])
    assert torch.equal(caches[1], caches[3])


def test_write_kv_refuses_a_cache_that_it_would_have_to_copy() -> None:
    k = torch.randn(1, 2, 4)
    scattered = torch.zeros(2, 4, 2, 8)[:, :2]
    with pytest.raises(RuntimeError, match="view"):
        torch_ops.write_kv(k, k, scattered[..., :4], scattered[..., :4], torch.tensor([0]))
