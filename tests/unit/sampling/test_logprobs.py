"""Log-probabilities are those of the model, before any processor, with the best alternatives."""

from __future__ import annotations

import math

import pytest
import torch
from weir.engine.request import TokenLogprobs
from weir.engine.sampler import Sampler, SampleRow
from weir.engine.sampling_state import SamplingState

from tests.unit.sampling.rows import state


def report(logits: torch.Tensor, states: list[SamplingState]) -> tuple[list[int], list[TokenLogprobs | None]]:
    sampled = Sampler(logits.shape[1])(logits.clone(), [SampleRow(row_state, 0) for row_state in states])
    return sampled.token_ids, sampled.logprobs


@pytest.mark.parametrize("vocab_size", [10, 1000, 49_152])
def test_they_equal_a_float32_log_softmax(vocab_size: int) -> None:
    logits = torch.randn(12, vocab_size, generator=torch.Generator().manual_seed(1)) * 4
    expected = torch.log_softmax(logits, dim=-1)
    tokens, reports = report(logits, [state(vocab_size, seed=r, logprobs=5) for r in range(12)])
    for r, found in enumerate(reports):
        assert found is not None
        assert found.token_id == tokens[r]
        assert found.logprob == pytest.approx(float(expected[r, tokens[r]]), abs=1e-5)
        best = expected[r].topk(5)
        assert [token for token, _ in found.top] == best.indices.tolist()
        assert [value for _, value in found.top] == pytest.approx(best.values.tolist(), abs=1e-5)


def test_alternatives_with_equal_logits_come_lowest_id_first() -> None:
    _, (found,) = report(torch.tensor([[0.0, 2.0, 1.0, 1.0, 1.0]]), [state(5, temperature=0.0, logprobs=3)])
    assert found is not None
    assert [token for token, _ in found.top] == [1, 2, 3]


def test_processors_and_filters_do_not_change_them() -> None:
    """By hand: of logits ln 1, ln 2, ln 5 the bias makes token 0 the only choice, which has 1/8 for the model."""
    logits = torch.tensor([[math.log(1), math.log(2), math.log(5)]])
    biased = state(3, logit_bias=((0, 50.0),), top_k=1, temperature=0.5, logprobs=2)
    tokens, (found,) = report(logits, [biased])
    assert tokens == [0]
    assert found is not None
    assert found.logprob == pytest.approx(math.log(1 / 8), abs=1e-6)
    assert [token for token, _ in found.top] == [2, 1]
    assert [value for _, value in found.top] == pytest.approx([math.log(5 / 8), math.log(2 / 8)], abs=1e-6)


def test_only_rows_that_ask_get_them_and_each_as_many_as_it_asked_for() -> None:
    states = [state(20), state(20, logprobs=0), state(20, logprobs=4), state(20, logprobs=1, temperature=0.0)]
    _, reports = report(torch.randn(4, 20, generator=torch.Generator().manual_seed(2)), states)
    assert [None if found is None else len(found.top) for found in reports] == [None, 0, 4, 1]


def test_more_alternatives_than_tokens_are_all_tokens_and_a_certain_token_has_zero() -> None:
    _, (found,) = report(torch.tensor([[0.0, -math.inf, -math.inf]]), [state(3, logprobs=3)])
    assert found is not None
    assert found.logprob == 0.0
    assert found.top == ((0, 0.0), (1, -math.inf), (2, -math.inf))


def test_prompt_tokens_are_reported_like_sampled_ones() -> None:
    logits = torch.randn(150, 333, generator=torch.Generator().manual_seed(6)) * 3
    tokens = torch.randint(0, 333, (150,), generator=torch.Generator().manual_seed(7)).tolist()
    expected = torch.log_softmax(logits, dim=-1)
    reports = Sampler(333).prompt_logprobs(logits.clone(), tokens, 2)
    assert [found.token_id for found in reports] == tokens
    assert [found.logprob for found in reports] == pytest.approx(
        [float(expected[i, token]) for i, token in enumerate(tokens)], abs=1e-5
    )
    assert [[token for token, _ in found.top] for found in reports] == expected.topk(2).indices.tolist()


def test_prompt_logprobs_do_not_depend_on_the_chunk() -> None:
    logits = torch.randn(40, 500, generator=torch.Generator().manual_seed(8)) * 3
    tokens, sampler = list(range(40)), Sampler(500)
    whole = sampler.prompt_logprobs(logits.clone(), tokens, 3)
    parts = [
        found
        for start, end in ((0, 1), (1, 17), (17, 40))
        for found in sampler.prompt_logprobs(logits[start:end].clone(), tokens[start:end], 3)
    ]
    assert parts == whole


def test_no_prompt_tokens_give_no_reports() -> None:
    assert Sampler(8).prompt_logprobs(torch.zeros(0, 8), [], 3) == []
