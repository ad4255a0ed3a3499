"""Bias, penalties and min_tokens: value for value what transformers does, and by hand where it does not have them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
import torch
from transformers import (
    MinNewTokensLengthLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
)
from weir.engine.logit_processors import process_logits
from weir.engine.sampling_state import SamplingState

from tests.unit.sampling.rows import sample, state

VOCABULARY = 50


def processed(logits: torch.Tensor, states: Sequence[SamplingState]) -> torch.Tensor:
    result = logits.clone()
    process_logits(result, states)
    return result


def random_logits(rows: int = 1, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, VOCABULARY, generator=torch.Generator().manual_seed(seed)) * 3


@pytest.mark.parametrize("penalty", [0.7, 1.3, 5.0])
def test_repetition_penalty_equals_transformers_over_prompt_and_output(penalty: float) -> None:
    logits = random_logits()
    prompt, output = [3, 3, 8, 20], [8, 41, 41, 41]
    theirs = RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([prompt + output]), logits.clone())
    ours = processed(logits, [state(VOCABULARY, prompt, output, repetition_penalty=penalty)])
    assert torch.equal(ours, theirs)


def test_logit_bias_equals_transformers_and_may_be_negative() -> None:
    logits = random_logits()
    bias = ((4, 2.5), (49, -100.0))
    theirs = SequenceBiasLogitsProcessor({(token,): value for token, value in bias})(
        torch.tensor([[1]]), logits.clone()
    )
    assert torch.equal(processed(logits, [state(VOCABULARY, logit_bias=bias)]), theirs)


@pytest.mark.parametrize("num_output", [0, 1, 2, 3, 4])
def test_min_tokens_equals_transformers_for_several_end_of_sequence_ids(num_output: int) -> None:
    """Once off by one, once counting the prompt, once suppressing only the first of several ids."""
    logits, prompt, eos = random_logits(), [5, 6, 7, 8], [2, 30, 31]
    theirs = MinNewTokensLengthLogitsProcessor(len(prompt), 3, eos)(
        torch.tensor([prompt + [9] * num_output]), logits.clone()
    )
    ours = processed(logits, [state(VOCABULARY, prompt, [9] * num_output, eos, min_tokens=3)])
    assert torch.equal(ours, theirs)
    assert bool(ours[0, eos].isinf().all()) == (num_output < 3)


def test_min_tokens_suppresses_the_stop_ids_of_the_request_too_and_nothing_else() -> None:
    ours = processed(torch.zeros(1, 10), [state(10, eos=(2, 3), stop_token_ids=(7,), min_tokens=1)])
    assert ours.isinf().nonzero()[:, 1].tolist() == [2, 3, 7]


def test_an_ignored_end_of_sequence_is_an_ordinary_token_for_min_tokens() -> None:
    ours = processed(torch.zeros(1, 10), [state(10, eos=(2, 3), stop_token_ids=(7,), min_tokens=1, ignore_eos=True)])
    assert ours.isinf().nonzero()[:, 1].tolist() == [7]


def test_an_end_of_sequence_id_outside_the_vocabulary_is_no_token() -> None:
    assert processed(torch.zeros(1, 4), [state(4, eos=(3, 4000), min_tokens=1)]).tolist() == [[0, 0, 0, -torch.inf]]


def test_presence_counts_once_and_frequency_each_time_over_the_output_only() -> None:
    """logit - count * frequency - (count > 0) * presence, the formula of the OpenAI API reference."""
    logits = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    ours = processed(logits, [state(4, [0, 0], [1, 1, 1, 2], presence_penalty=0.5, frequency_penalty=0.25)])
    assert ours.tolist() == [[1.0, 2.0 - 0.75 - 0.5, 3.0 - 0.25 - 0.5, 4.0]]


def test_the_order_is_bias_then_repetition_then_presence_and_frequency_then_min_tokens() -> None:
    processing = state(
        4,
        prompt=[1],
        output=[2, 2],
        eos=[3],
        logit_bias=((1, 2.0), (2, -4.0), (3, 50.0)),
        repetition_penalty=2.0,
        presence_penalty=1.0,
        frequency_penalty=0.5,
        min_tokens=9,
    )
    ours = processed(torch.tensor([[6.0, 2.0, 2.0, 0.0]]), [processing])
    assert ours.tolist() == [[6.0, (2.0 + 2.0) / 2, (2.0 - 4.0) * 2 - 1.0 - 2 * 0.5, -torch.inf]]


def test_a_penalised_row_changes_no_neighbour_in_either_order() -> None:
    """A request with repetition_penalty batched after one without once got wrong shapes."""
    logits = random_logits(3)
    plain, penalised = state(VOCABULARY), state(VOCABULARY, [1, 2], [3], repetition_penalty=2.0)
    alone = processed(logits[1:2], [penalised])
    for others in ([plain, penalised, plain], [plain, penalised, state(VOCABULARY, logit_bias=((0, 1.0),))]):
        ours = processed(logits, others)
        assert torch.equal(ours[1:2], alone)
        assert torch.equal(ours[0], logits[0])


def test_counts_kept_token_by_token_equal_a_recount() -> None:
    generator = torch.Generator().manual_seed(4)
    prompt = torch.randint(0, VOCABULARY, (30,), generator=generator).tolist()
    output = torch.randint(0, VOCABULARY, (200,), generator=generator).tolist()
    growing = state(VOCABULARY, prompt, repetition_penalty=1.1)
    assert growing.seen is not None
    for length, token_id in enumerate(output, start=1):
        growing.append(token_id)
        counts = Counter(output[:length])
        seen = dict(zip(growing.seen.ids.tolist(), growing.seen.counts.tolist(), strict=True))
        assert seen == {token: counts[token] for token in {*prompt, *output[:length]}}


def test_processors_apply_to_greedy_rows() -> None:
    logits = torch.tensor([[0.0, 5.0, 4.0]])
    assert sample(logits, [state(3, temperature=0.0)]) == [1]
    assert sample(logits, [state(3, temperature=0.0, logit_bias=((2, 1.5),))]) == [2]
    assert sample(logits, [state(3, output=[1], temperature=0.0, presence_penalty=1.5)]) == [2]
    assert sample(logits, [state(3, eos=(1,), temperature=0.0, min_tokens=1)]) == [2]


def test_a_biased_row_and_its_penalty_reach_a_vocabulary_that_fills_no_whole_chunk() -> None:
    logits = torch.zeros(2, 130)
    states = [state(130, temperature=0.0, logit_bias=((129, 1.0),)) for _ in range(2)]
    assert sample(logits, states) == [129, 129]


def test_a_choice_is_processed_only_while_something_changes_its_logits() -> None:
    """min_tokens must not keep a greedy choice off the fused arg-max once they are out, or without a stop token."""
    waiting = state(4, output=[1], eos=(3,), min_tokens=2)
    assert waiting.processed
    waiting.append(1)
    assert not waiting.processed
    assert not state(4, eos=(3,), min_tokens=2, ignore_eos=True).processed
    assert not state(4).processed
    assert state(4, presence_penalty=0.1).processed
    assert state(4, logit_bias=((1, 1.0),)).processed
