"""The peak formula, by hand on small cases and by brute force on random ones."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from weir.engine.budget import Demand, FuturePeak, ReserveEverything, SharedPrefix, blocks_needed, kv_tokens_needed


def decode(length: int, remaining: int) -> Demand:
    """A running decode: `length` tokens, the last not yet written; `remaining` more may be sampled."""
    return Demand(base=length - 1, limit=length - 1 + remaining, steps=remaining)


def test_the_last_sampled_token_needs_no_slot() -> None:
    assert kv_tokens_needed(16, 1) == 16
    assert blocks_needed(16, 1, 1, 16) == 1
    assert blocks_needed(16, 2, 1, 16) == 2


def test_choices_share_the_full_blocks_of_their_prompt() -> None:
    # 33 prompt tokens: two full blocks shared, one partial each; 8 more tokens stay in that block.
    assert blocks_needed(33, 8, 1, 16) == 3
    assert blocks_needed(33, 8, 4, 16) == 3 + 3 * 1
    # A prompt of exactly two blocks: its last token is computed by every choice, so one block is shared.
    assert blocks_needed(32, 2, 3, 16) == 3 + 2 * 2


def test_the_peak_of_one_request_is_its_own_maximum() -> None:
    assert FuturePeak([decode(10, 23)], 16, 40).peak() == 2  # 10 - 1 + 23 = 32 tokens
    assert FuturePeak([decode(10, 24)], 16, 40).peak() == 3


def test_a_request_that_ends_early_makes_room_for_one_that_grows_late() -> None:
    # Block size 1 for easy reading. A holds 9 now and ends after 1 step at 10; B holds 1 and grows to 20 in 19 steps.
    early, late = Demand(9, 10, 1), Demand(1, 20, 19)
    # t=1: 10 + 2 = 12; t=19: 20. Reserving both maxima would ask for 30.
    assert FuturePeak([early, late], 1, 40).peak() == 20
    assert ReserveEverything([early, late], 1, 40).peak() == 30


def test_a_candidate_is_refused_for_a_peak_that_lies_before_its_own_end() -> None:
    # t=5: running 15, candidate 6 -> 21 blocks, although both ends alone would fit.
    running, candidate = Demand(10, 15, 5), Demand(1, 30, 29)
    assert not FuturePeak([running], 1, 20).fits([candidate])
    assert FuturePeak([running], 1, 30).fits([candidate])
    assert not FuturePeak([running], 1, 29).fits([candidate])


def test_a_shared_prefix_counts_once_while_its_other_holder_lives() -> None:
    running = Demand(10, 12, 2)
    candidate = Demand(10, 14, 4)
    # t=2: 12 + 12 - 10 shared = 14; t=4: the candidate alone, 14.
    assert FuturePeak([running], 1, 14).fits([candidate], [SharedPrefix(10, 2)])
    assert not FuturePeak([running], 1, 13).fits([candidate], [SharedPrefix(10, 2)])
    assert not FuturePeak([running], 1, 23).fits([candidate])


_demands = st.builds(
    lambda base, growth, slack: Demand(base, base + growth, growth + slack),
    st.integers(0, 30),
    st.integers(1, 20),
    st.integers(0, 3),
)


@settings(max_examples=400, deadline=None)
@given(st.lists(_demands, min_size=1, max_size=8), _demands, st.integers(1, 5), st.integers(1, 60))
def test_the_formula_is_the_brute_force_maximum_over_time(
    running: list[Demand], candidate: Demand, block_size: int, usable: int
) -> None:
    def total(demands: list[Demand]) -> int:
        return max(
            sum(-(-min(d.base + t, d.limit) // block_size) for d in demands if t <= d.steps)
            for t in range(1, max(d.steps for d in demands) + 1)
        )

    policy = FuturePeak(running, block_size, usable)
    assert policy.peak() == total(running)
    fits_alone_already = total(running) <= usable
    if fits_alone_already:
        assert policy.fits([candidate]) == (total([*running, candidate]) <= usable)


@pytest.mark.parametrize("policy", [FuturePeak, ReserveEverything])
def test_nothing_running_has_no_peak(policy: type[FuturePeak] | type[ReserveEverything]) -> None:
    assert policy([], 16, 40).peak() == 0
