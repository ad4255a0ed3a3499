"""200,000 draws against exact probabilities. Seeds are fixed, so each statistic is one number for ever."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from weir.engine.sampler import Sampler, SampleRow

from tests.unit.sampling.rows import params, probabilities, state

DRAWS = 200_000
# 99.9 % quantile of chi-square by degrees of freedom.
CHI_SQUARE = {
    1: 10.83,
    2: 13.82,
    3: 16.27,
    4: 18.47,
    5: 20.52,
    6: 22.46,
    7: 24.32,
    8: 26.12,
    9: 27.88,
    10: 29.59,
    11: 31.26,
}

LOGITS = [1.2, -0.3, 2.0, 0.7, -1.5, 2.0, 0.0, -0.8, 1.2, 0.4, -2.5, 1.0]


def assert_follows(counts: Counter[int], exact: list[float], draws: int = DRAWS) -> None:
    assert sum(counts.values()) == draws
    possible = [token for token, probability in enumerate(exact) if probability > 0]
    assert set(counts) <= set(possible)
    statistic = sum((counts[t] - draws * exact[t]) ** 2 / (draws * exact[t]) for t in possible)
    assert len(possible) == 1 or statistic < CHI_SQUARE[len(possible) - 2]


def draw(rows: list[SampleRow], candidates: int) -> Counter[int]:
    sampler = Sampler(len(LOGITS), candidates=candidates)
    return Counter(sampler(torch.tensor(LOGITS).repeat(len(rows), 1), rows).token_ids)


@pytest.mark.parametrize(
    ("candidates", "spec"),
    [
        (128, {}),
        (128, {"temperature": 1.7, "top_k": 5}),
        (2, {"top_k": 5, "top_p": 0.8}),
        (128, {"top_p": 0.7}),
        (2, {"temperature": 0.6, "top_p": 0.9}),
        (128, {"min_p": 0.2}),
        (2, {"temperature": 2.0, "top_k": 9, "top_p": 0.95, "min_p": 0.15}),
    ],
)
def test_draws_over_positions_follow_the_exact_probabilities(candidates: int, spec: dict[str, float]) -> None:
    choice = state(len(LOGITS), **spec)  # type: ignore[arg-type]
    rows = [SampleRow(choice, position) for position in range(DRAWS)]
    assert_follows(draw(rows, candidates), probabilities(torch.tensor(LOGITS).tolist(), params(**spec)))


def test_draws_with_penalties_bias_and_filters_follow_the_exact_probabilities() -> None:
    penalised = [*LOGITS]
    penalised[9] += 1.5  # bias
    for token in (2, 5, 7):  # prompt and output
        penalised[token] *= 1 / 1.4 if penalised[token] > 0 else 1.4
    penalised[5] -= 0.3 + 2 * 0.25  # twice in the output
    penalised[7] -= 0.3 + 0.25
    penalised[0] = float("-inf")  # stop token before min_tokens
    filters = {"temperature": 1.3, "top_k": 8, "top_p": 0.9, "min_p": 0.05}
    choice = state(
        len(LOGITS),
        prompt=[2],
        output=[5, 7, 5],
        eos=[0],
        repetition_penalty=1.4,
        presence_penalty=0.3,
        frequency_penalty=0.25,
        min_tokens=10,
        logit_bias=((9, 1.5),),
        **filters,  # type: ignore[arg-type]
    )
    rows = [SampleRow(choice, position) for position in range(DRAWS)]
    assert_follows(draw(rows, 128), probabilities(torch.tensor(penalised).tolist(), params(**filters)))


def test_draws_over_seeds_at_one_position_follow_the_exact_probabilities() -> None:
    rows = [SampleRow(state(len(LOGITS), seed=seed, top_p=0.9), 17) for seed in range(50_000)]
    exact = probabilities(torch.tensor(LOGITS).tolist(), params(top_p=0.9))
    assert_follows(draw(rows, 128), exact, draws=50_000)


def test_the_choices_of_requests_with_several_follow_the_exact_probabilities_and_are_independent() -> None:
    states = [state(len(LOGITS), seed=seed, choice=choice) for seed in range(10_000) for choice in range(2)]
    sampler = Sampler(len(LOGITS))
    drawn = sampler(torch.tensor(LOGITS).repeat(20_000, 1), [SampleRow(choice, 3) for choice in states]).token_ids
    exact = probabilities(torch.tensor(LOGITS).tolist(), params())
    assert_follows(Counter(drawn), exact, draws=20_000)
    agreement = sum(a == b for a, b in zip(drawn[::2], drawn[1::2], strict=True)) / 10_000
    assert agreement == pytest.approx(sum(p * p for p in exact), abs=4 * 0.005)


def test_equal_logits_are_drawn_equally_often_whatever_their_id() -> None:
    """Sampling a logit value and then its lowest id is biased on ties."""
    rows = [SampleRow(state(len(LOGITS), min_p=1.0), position) for position in range(20_000)]
    counts = draw(rows, 128)
    assert set(counts) == {2, 5}
    assert abs(counts[2] - 10_000) < 4 * 70.7
