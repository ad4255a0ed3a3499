"""Ragged paged attention against float64, every slot that no sequence owns filled with NaN."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch
from attention_oracle import Problem, attention_float64, make_problem, ragged_batch
from weir_kernels.attention import paged_attention, plan_launches
from weir_kernels.tuning import Chip

MIXED = [(1, 1), (1, 0), (1, 77), (1, 16), (19, 50), (0, 0), (1, 33), (5, 5)]


def assert_matches(actual: torch.Tensor, expected: torch.Tensor, tolerance: float) -> None:
    assert expected.isfinite().all()
    assert actual.isfinite().all()
    torch.testing.assert_close(actual.double(), expected, rtol=tolerance, atol=tolerance)


def run_on(problem: Problem, chip: Chip, scale: float, **options: object) -> tuple[torch.Tensor, list[str]]:
    """Runs what a given chip would run; also returns the names of the kernels launched."""
    defaults = {"soft_cap": None, "sinks": None, "k_scale": 1.0, "v_scale": 1.0, "split_tokens": None}
    window = options.pop("sliding_window", None)
    out = torch.full(problem.q.shape, float("nan"), dtype=problem.q.dtype)
    launches = plan_launches(
        out,
        problem.q,
        problem.k_cache,
        problem.v_cache,
        problem.batch,
        scale,
        window,
        **(defaults | options),
        chip=chip,
    )
    for launch in launches:
        launch.run()
    return out, [launch.kernel.fn.__name__ for launch in launches]


@pytest.mark.parametrize(
    ("group", "num_kv_heads", "head_dim", "block_size"),
    [
        (1, 2, 64, 16),
        (2, 1, 80, 32),
        (3, 2, 96, 64),
        (4, 1, 128, 16),
        (5, 2, 64, 64),
        (6, 1, 256, 32),
        (7, 2, 80, 16),
        (8, 1, 96, 32),
        (12, 1, 128, 64),
        (16, 1, 64, 16),
        (28, 1, 80, 64),
        (32, 1, 128, 32),
    ],
)
def test_a_mixed_batch_matches_float64_for_every_group_head_size_and_block_size(
    group: int, num_kv_heads: int, head_dim: int, block_size: int
) -> None:
    problem = make_problem(
        MIXED, num_heads=group * num_kv_heads, num_kv_heads=num_kv_heads, head_dim=head_dim, block_size=block_size
    )
    actual = paged_attention(problem.q, problem.k_cache, problem.v_cache, problem.batch, head_dim**-0.5)
    assert_matches(actual, attention_float64(problem, head_dim**-0.5), 2e-6)


@pytest.mark.parametrize(
    ("window", "soft_cap", "has_sinks"), list(itertools.product([None, 1, 20], [None, 5.0], [False, True]))
)
def test_window_soft_cap_and_sinks_match_float64_alone_and_together(
    window: int | None, soft_cap: float | None, has_sinks: bool
) -> None:
    problem = make_problem(MIXED, num_heads=6, num_kv_heads=2, head_dim=64, block_size=16)
    sinks = torch.linspace(-2.0, 3.0, 6) if has_sinks else None
    actual, _ = run_on(problem, Chip("default", 8), 0.3, sliding_window=window, soft_cap=soft_cap, sinks=sinks)
    assert_matches(actual, attention_float64(problem, 0.3, window=window, soft_cap=soft_cap, sinks=sinks), 2e-6)


def test_a_row_without_keys_gives_zeros_even_with_a_sink() -> None:
    problem = make_problem([(1, 0), (1, 3)], num_heads=2, num_kv_heads=1, head_dim=64, block_size=16)
    actual = paged_attention(problem.q, problem.k_cache, problem.v_cache, problem.batch, 0.1, sinks=torch.ones(2))
    assert torch.equal(actual[0], torch.zeros(2, 64))


def test_blocks_that_the_window_has_passed_are_never_read() -> None:
    lengths = [(1, 100), (1, 41), (40, 140)]
    window = 9
    problem = make_problem(
        lengths,
        num_heads=4,
        num_kv_heads=1,
        head_dim=64,
        block_size=16,
        owned_from=[kv - query - window + 1 for query, kv in lengths],
    )
    actual, _ = run_on(problem, Chip("default", 8), 0.125, sliding_window=window)
    assert_matches(actual, attention_float64(problem, 0.125, window=window), 2e-6)


def test_very_negative_scores_after_a_fully_masked_tile_do_not_underflow() -> None:
    """A tile in which a row sees nothing must leave its maximum at -inf: with 0, exp(-200 - 0) would vanish."""
    problem = make_problem([(30, 90)], num_heads=2, num_kv_heads=1, head_dim=64, block_size=16)
    problem.k_cache.copy_(problem.k_cache * 0 - problem.k_cache.abs())
    problem.q.copy_(problem.q.abs() * 6)
    for window in (2, 33):
        actual, _ = run_on(problem, Chip("default", 1), 1.0, sliding_window=window)
        expected = attention_float64(problem, 1.0, window=window)
        assert expected.abs().amax(dim=2).min() > 1e-3
        assert_matches(actual, expected, 1e-3)


def test_float16_stays_within_its_rounding() -> None:
    problem = make_problem(MIXED, num_heads=8, num_kv_heads=2, head_dim=128, block_size=16, dtype=torch.float16)
    actual, _ = run_on(problem, Chip("default", 8), 128**-0.5)
    assert actual.dtype == torch.float16
    assert_matches(actual, attention_float64(problem, 128**-0.5), 2e-3)


def test_a_float8_cache_is_scaled_back() -> None:
    problem = make_problem(
        MIXED,
        num_heads=4,
        num_kv_heads=2,
        head_dim=64,
        block_size=16,
        dtype=torch.float16,
        cache_dtype=torch.float8_e4m3fn,
    )
    actual, _ = run_on(problem, Chip("default", 8), 0.125, k_scale=0.5, v_scale=4.0)
    assert_matches(actual, attention_float64(problem, 0.125, k_scale=0.5, v_scale=4.0), 1e-2)


def test_strided_queries_and_a_joint_cache_need_no_copy() -> None:
    problem = make_problem(MIXED, num_heads=4, num_kv_heads=2, head_dim=64, block_size=16)
    packed = torch.full((problem.q.shape[0], 8, 64), float("nan"))
    packed[:, :4] = problem.q
    joint = torch.stack([problem.k_cache, problem.v_cache], dim=1)
    strided = dataclasses.replace(problem, q=packed[:, :4], k_cache=joint[:, 0], v_cache=joint[:, 1])
    heads_first = [cache.transpose(1, 2).contiguous().transpose(1, 2) for cache in (problem.k_cache, problem.v_cache)]
    expected = attention_float64(problem, 0.125)
    assert_matches(run_on(strided, Chip("default", 8), 0.125)[0], expected, 2e-6)
    by_head = dataclasses.replace(problem, k_cache=heads_first[0], v_cache=heads_first[1])
    assert_matches(run_on(by_head, Chip("default", 8), 0.125)[0], expected, 2e-6)


def test_a_block_table_is_not_read_past_the_blocks_a_sequence_has() -> None:
    problem = make_problem(MIXED, num_heads=2, num_kv_heads=1, head_dim=64, block_size=16)
    expected = attention_float64(problem, 0.125)
    for row, seq_len in enumerate(problem.batch.seq_lens.tolist()):
        problem.batch.block_tables[row, -(-seq_len // 16) :] = 2**30
    actual, _ = run_on(problem, Chip("default", 8), 0.125)
    assert_matches(actual, expected, 2e-6)


def test_a_cache_beyond_two_to_the_31_elements_is_addressed_in_64_bits() -> None:
    blocks_needed = 2**31 // (16 * 64) + 4
    small = make_problem(
        [(1, 40), (17, 30)], num_heads=2, num_kv_heads=1, head_dim=64, block_size=16, dtype=torch.float16
    )
    expected = attention_float64(small, 0.125)
    k_cache = torch.empty((blocks_needed, 16, 1, 64), dtype=torch.float16)
    v_cache = torch.empty((blocks_needed, 16, 1, 64), dtype=torch.float16)
    count = small.k_cache.shape[0]
    k_cache[-count:], v_cache[-count:] = small.k_cache, small.v_cache
    batch = dataclasses.replace(small.batch, block_tables=small.batch.block_tables + (blocks_needed - count))
    spaced = torch.empty(2**31 + 2**28, dtype=torch.float16).as_strided(small.q.shape, (2**31 // 16, 64, 1))
    spaced.copy_(small.q)
    large = Problem(spaced, k_cache, v_cache, batch)
    assert_matches(run_on(large, Chip("default", 8), 0.125)[0], expected, 2e-3)


def test_more_rows_than_the_planner_reads_at_once_each_get_their_own_result() -> None:
    lengths = [(1, row % 3 * 20) for row in range(260)]
    problem = make_problem(lengths, num_heads=1, num_kv_heads=1, head_dim=64, block_size=16)
    actual, _ = run_on(problem, Chip("default", 1), 0.125)
    assert_matches(actual, attention_float64(problem, 0.125), 2e-6)


@pytest.mark.parametrize("processors", [1, 8, 40])
def test_any_number_of_splits_gives_the_same_attention(processors: int) -> None:
    lengths = [(1, 1500), (1, 256), (1, 257), (1, 0), (1, 700)]
    problem = make_problem(lengths, num_heads=3, num_kv_heads=1, head_dim=64, block_size=32)
    actual, kernels = run_on(problem, Chip("default", processors), 0.125)
    assert kernels == ["decode_kernel", "merge_kernel"]
    assert_matches(actual, attention_float64(problem, 0.125), 2e-6)


def test_the_merge_goes_on_past_the_splits_it_reads_at_once() -> None:
    problem = make_problem([(1, 640), (1, 3)], num_heads=2, num_kv_heads=1, head_dim=64, block_size=16)
    actual, _ = run_on(problem, Chip("default", 1), 0.125, split_tokens=16, sinks=torch.tensor([4.0, -1.0]))
    assert_matches(actual, attention_float64(problem, 0.125, sinks=torch.tensor([4.0, -1.0])), 2e-6)


def test_no_merge_is_launched_when_no_row_can_be_split() -> None:
    problem = make_problem([(1, 20), (1, 3)], num_heads=2, num_kv_heads=1, head_dim=64, block_size=16)
    assert run_on(problem, Chip("default", 132), 0.125)[1] == ["decode_kernel"]


def test_with_fixed_splits_a_row_does_not_depend_on_its_batch() -> None:
    rows = [(1, 300), (1, 77), (1, 0), (1, 513)]
    problem = make_problem(rows, num_heads=2, num_kv_heads=1, head_dim=64, block_size=16)
    together, _ = run_on(problem, Chip("default", 16), 0.125, split_tokens=128)
    for row, (_, seq_len) in enumerate(rows):
        alone = dataclasses.replace(
            problem,
            q=problem.q[row : row + 1],
            batch=ragged_batch([(1, seq_len)], 16, problem.batch.block_tables[row : row + 1]),
        )
        assert torch.equal(run_on(alone, Chip("default", 16), 0.125, split_tokens=128)[0][0], together[row])


def test_what_the_kernels_would_read_wrongly_is_refused() -> None:
    problem = make_problem([(1, 20)], num_heads=4, num_kv_heads=2, head_dim=64, block_size=16)

    def attend(**changes: object) -> None:
        q, k, v = (changes.pop(name, getattr(problem, name)) for name in ("q", "k_cache", "v_cache"))
        scale = changes.pop("scale", 0.125)
        paged_attention(q, k, v, problem.batch, scale, changes.pop("sliding_window", None), **changes)

    k = problem.k_cache
    with pytest.raises(ValueError, match="block_size must be a power of two of at least 16, not 8"):
        attend(k_cache=k[:, :8], v_cache=problem.v_cache[:, :8])
    with pytest.raises(ValueError, match="stride 1"):
        attend(q=torch.zeros(1, 64, 4).transpose(1, 2))
    with pytest.raises(ValueError, match="v_cache has strides"):
        attend(v_cache=problem.v_cache.transpose(1, 2).contiguous().transpose(1, 2))
    with pytest.raises(ValueError, match="3 query heads are not a multiple of 2 kv heads"):
        attend(q=torch.zeros(1, 3, 64))
    with pytest.raises(ValueError, match="33 query heads a kv head"):
        attend(q=torch.zeros(1, 66, 64))
    with pytest.raises(ValueError, match=r"the cache has dtype torch\.float16"):
        attend(k_cache=k.half(), v_cache=k.half())
    with pytest.raises(ValueError, match="scale must be positive, not 0"):
        attend(scale=0.0)
    with pytest.raises(ValueError, match="sliding_window must be at least 1, not 0"):
        attend(sliding_window=0)
    with pytest.raises(ValueError, match="one contiguous logit for each of 4 heads"):
        attend(sinks=torch.zeros(3))


def test_a_float8_cache_is_refused_where_the_chip_cannot_convert_it() -> None:
    problem = make_problem(
        [(1, 20)], num_heads=2, num_kv_heads=1, head_dim=64, block_size=16, cache_dtype=torch.float8_e4m3fn
    )
    with pytest.raises(ValueError, match=r"needs compute capability 8.9 or newer; this device is sm_80"):
        run_on(problem, Chip("sm_80", 108), 0.125)
