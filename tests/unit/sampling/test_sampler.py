"""A row's token depends on that row alone, and is always a token."""

from __future__ import annotations

import math
import random

import pytest
import torch
from weir.engine.inverse_cdf import draw_from_all, draw_from_few
from weir.engine.sampler import Sampler, SampleRow
from weir.engine.sampling_state import SamplingState

from tests.unit.sampling.rows import expected_token, params, sample, state

NAN, INF = math.nan, math.inf


def random_state(rng: random.Random, vocab_size: int) -> SamplingState:
    return state(
        vocab_size,
        prompt=[rng.randrange(vocab_size) for _ in range(5)],
        output=[rng.randrange(vocab_size) for _ in range(rng.randrange(9))],
        eos=[1],
        seed=rng.randrange(2**64),
        temperature=rng.choice([0.0, 0.3, 1.0, 1.8]),
        top_k=rng.choice([0, 0, 1, 20, 500]),
        top_p=rng.choice([1.0, 0.5, 0.95, 0.999]),
        min_p=rng.choice([0.0, 0.0, 0.05]),
        repetition_penalty=rng.choice([1.0, 1.2]),
        frequency_penalty=rng.choice([0.0, 0.4]),
        logit_bias=rng.choice([(), ((3, 4.0),)]),
        min_tokens=rng.choice([0, 20]),
        logprobs=rng.choice([None, 3]),
    )


@pytest.mark.parametrize("candidates", [1, 3, 128])
@pytest.mark.parametrize("vocab_size", [1, 5, 64, 100, 300])
def test_the_token_is_that_of_the_definition(vocab_size: int, candidates: int) -> None:
    """Against a sampler in plain Python, with ties, on the short way and on the long one."""
    rng = random.Random(vocab_size * 1000 + candidates)
    for _ in range(10):
        spread = rng.choice([0.3, 3.0])
        rows = [[rng.gauss(0, spread) for _ in range(vocab_size)] for _ in range(16)]
        if rng.random() < 0.4:
            rows = [[float(round(logit)) for logit in row] for row in rows]
        logits = torch.tensor(rows)
        states = [
            state(
                vocab_size,
                seed=rng.randrange(2**64),
                temperature=rng.choice([0.4, 1.0, 2.0]),
                top_k=rng.choice([0, 2, 7, 50]),
                top_p=rng.choice([1.0, 0.8, 0.3]),
                min_p=rng.choice([0.0, 0.1]),
            )
            for _ in rows
        ]
        expected = [
            expected_token(row, row_state.params, row_state.random(6))
            for row, row_state in zip(logits.tolist(), states, strict=True)
        ]
        assert sample(logits, states, position=6, candidates=candidates) == expected


@pytest.mark.parametrize(("vocab_size", "spread"), [(5000, 3.0), (5000, 0.1), (3001, 2.0)])
def test_a_row_gives_the_same_alone_and_in_any_batch(vocab_size: int, spread: float) -> None:
    """Bit for bit, logprobs included: top_k on ties once depended on the number of rows."""
    rng = random.Random(vocab_size)
    logits = torch.randn(64, vocab_size, generator=torch.Generator().manual_seed(3)) * spread
    logits[::4] = logits[::4].mul(2).round().div(2)
    states = [random_state(rng, vocab_size) for _ in range(64)]
    sampler = Sampler(vocab_size)

    def run(order: list[int]) -> dict[int, object]:
        batch = sampler(logits[order].clone(), [SampleRow(states[r], 40 + r) for r in order])
        return {r: result for r, *result in zip(order, batch.token_ids, batch.logprobs, strict=True)}

    together = run(list(range(64)))
    for r in range(64):
        assert run([r])[r] == together[r]
    for size in (2, 7, 33, 64):
        order = rng.sample(range(64), size)
        assert run(order) == {r: together[r] for r in order}


def test_threads_do_not_change_a_token() -> None:
    logits = torch.randn(24, 5000, generator=torch.Generator().manual_seed(5)) * 2
    states = [random_state(random.Random(r), 5000) for r in range(24)]
    threads = torch.get_num_threads()
    try:
        drawn = []
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            drawn.append(sample(logits, states))
    finally:
        torch.set_num_threads(threads)
    assert drawn[0] == drawn[1] == drawn[2]


def test_a_seeded_choice_repeats_itself_and_another_seed_does_not() -> None:
    logits = torch.zeros(1, 1000)
    tokens = [[sample(logits, [state(1000, seed=seed)], position)[0] for position in range(20)] for seed in (1, 1, 2)]
    assert tokens[0] == tokens[1]
    assert tokens[0] != tokens[2]


def test_requests_with_one_seed_agree_in_every_row_of_a_batch() -> None:
    """A seed indexed by batch row, or one stream shared by the batch, made seeded requests irreproducible."""
    assert len(set(sample(torch.zeros(8, 1000), [state(1000, seed=9) for _ in range(8)], position=5))) == 1


def test_greedy_takes_the_highest_logit_and_the_lowest_id_of_a_tie() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0, 2.0], [0.0, 0.0, 0.0, 0.0], [-0.0, 0.0, -1.0, 0.0]])
    assert sample(logits, [state(4, temperature=0.0)] * 3) == [1, 0, 0]


def test_greedy_equals_arg_max_over_a_large_vocabulary() -> None:
    logits = torch.randn(32, 49_152, generator=torch.Generator().manual_seed(8)).mul(8).round().div(8)
    assert sample(logits, [state(49_152, temperature=0.0)] * 32) == logits.argmax(-1).tolist()


def test_a_temperature_too_small_to_divide_by_is_greedy() -> None:
    assert sample(torch.tensor([[1.0, 1.0, 0.0]]), [state(3, temperature=1e-30)]) == [0]


def test_greedy_and_sampled_rows_share_a_batch() -> None:
    logits = torch.tensor([[0.0, 9.0, 0.0]]).repeat(4, 1)
    states = [state(3, temperature=0.0), state(3, top_k=1), state(3, temperature=0.0), state(3, top_p=0.1)]
    assert sample(logits, states) == [1, 1, 1, 1]


@pytest.mark.parametrize("spec", [{"temperature": 0.0}, {}, {"top_k": 2}, {"top_p": 0.5}, {"min_p": 0.9}])
@pytest.mark.parametrize("candidates", [1, 128])
def test_a_broken_row_gives_a_defined_token_and_harms_no_other(spec: dict[str, float], candidates: int) -> None:
    """A NaN row once gave an uninitialised id, which read outside the embedding and ended every request."""
    healthy = [0.0, 1.0, 2.0, 0.5]
    broken = {
        (NAN, NAN, NAN, NAN): {0},
        (-INF, -INF, -INF, -INF): {0},
        (NAN, 1.0, NAN, -INF): {1},
        (0.0, INF, 5.0, 9.0): {1},
        (NAN, -INF, INF, 0.0): {2},
        (-INF, NAN, -INF, NAN): {0},
    }
    logits = torch.tensor([row for bad in broken for row in (list(bad), healthy)])
    states = [state(4, seed=r, **spec) for r in range(len(logits))]  # type: ignore[arg-type]
    drawn = sample(logits, states, candidates=candidates)
    assert [{token} for token in drawn[::2]] == list(broken.values())
    alone = [sample(torch.tensor([healthy]), [states[r]], candidates=candidates)[0] for r in range(1, len(logits), 2)]
    assert drawn[1::2] == alone


def test_a_row_whose_every_token_is_suppressed_gives_the_first_id() -> None:
    stops = state(3, eos=(0, 1, 2), min_tokens=5)
    assert sample(torch.tensor([[1.0, 2.0, 3.0]]), [stops]) == [0]


@pytest.mark.parametrize("vocab_size", [3, 63, 64, 65, 1000])
@pytest.mark.parametrize("top_p", [1e-12, 0.5, 1.0])
def test_equal_logits_never_give_an_id_outside_the_vocabulary(vocab_size: int, top_p: float) -> None:
    """top_p once returned an id past the end when all logits were equal."""
    states = [state(vocab_size, seed=seed, top_p=top_p) for seed in range(200)]
    drawn = sample(torch.full((200, vocab_size), -7.25), states)
    assert max(drawn) < math.ceil(vocab_size * top_p)
    assert min(drawn) >= 0


@pytest.mark.parametrize("u", [0.0, 0.5, 1.0 - 2.0**-53])
def test_the_ends_of_the_unit_interval_draw_tokens_with_weight(u: float) -> None:
    weights = torch.zeros(1, 3, 64)
    weights[0, 0, 5] = weights[0, 1, 9] = weights[0, 2, 60] = 0.1
    expected = {0.0: 5, 0.5: 73, 1.0 - 2.0**-53: 188}[u]
    number = torch.tensor([u], dtype=torch.float64)
    assert draw_from_all(weights, weights.double().sum(-1).cumsum(-1), number).tolist() == [expected]
    ids, few = torch.tensor([[188, 5, 70, 73]]), torch.tensor([[0.1, 0.1, 0.0, 0.1]], dtype=torch.float64)
    assert draw_from_few(ids, few, number).tolist() == [expected]


def test_top_k_one_with_equal_logits_is_the_first_id() -> None:
    assert sample(torch.zeros(1, 500), [state(500, top_k=1)]) == [0]


def test_logits_of_the_wrong_shape_are_refused() -> None:
    rows = [SampleRow(state(4), 0)]
    for shape in ((1, 5), (2, 4), (0, 4)):
        with pytest.raises(ValueError, match=r"expected \(1, 4\)"):
            Sampler(4)(torch.zeros(shape), rows)


def test_an_empty_batch_gives_nothing() -> None:
    assert Sampler(4)(torch.zeros(0, 4), []).token_ids == []


def test_sampling_counts_nothing_until_the_token_is_appended() -> None:
    """A token that was sampled but not taken, as after a cancelled step, must not be penalised."""
    choice = state(4, temperature=0.0, presence_penalty=2.0)
    logits = torch.tensor([[0.0, 1.0, 0.5, 0.0]])
    assert [sample(logits, [choice]), sample(logits, [choice])] == [[1], [1]]
    choice.append(1)
    assert sample(logits, [choice]) == [2]


def test_default_parameters_are_plain_sampling() -> None:
    logits = [0.3, 1.0, -1.0]
    choice = state(3)
    assert sample(torch.tensor([logits]), [choice], 2) == [expected_token(logits, params(), choice.random(2))]
