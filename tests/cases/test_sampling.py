"""A token is a function of its request alone: of its logits, its parameters, its seed and its position."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from weir.engine.request import SamplingParams

from tests.cases.conftest import TinyModel
from tests.cases.engines import Engine, ExactModel, make_core, some_tokens
from tests.unit.sampling.rows import sample, state

PROMPT = some_tokens(23)
SAMPLED: dict[str, dict[str, object]] = {
    "plain": {"temperature": 1.0, "seed": 11},
    "hot": {"temperature": 3.0, "seed": 12},
    "top_k": {"temperature": 1.5, "top_k": 5, "seed": 13},
    "top_p": {"temperature": 1.5, "top_p": 0.7, "seed": 14},
    "min_p": {"temperature": 1.5, "min_p": 0.1, "seed": 15},
    "all": {"temperature": 1.2, "top_k": 9, "top_p": 0.9, "min_p": 0.05, "seed": 2**64 - 1},
}


# -- one seed, one result -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SAMPLED)
def test_a_seeded_request_alone_gives_what_the_definition_gives(name: str) -> None:
    engine = Engine(make_core())
    params = engine.submit("a", PROMPT, 20, **SAMPLED[name])  # type: ignore[arg-type]
    engine.run()
    assert engine.tokens("a") == ExactModel().continuation(PROMPT, 20, params)


def expected() -> dict[str, list[int]]:
    model = ExactModel()
    return {
        name: model.continuation(PROMPT, 20, SamplingParams(20, **params))  # type: ignore[arg-type]
        for name, params in SAMPLED.items()
    }


@pytest.mark.parametrize(
    "settings",
    [
        {"max_batch_tokens": 200},
        {"max_batch_tokens": 9},
        {"max_batch_tokens": 9, "prefix_cache": False},
        {"block_size": 1, "num_blocks": 300},
        {"max_running": 2},
        {"num_blocks": 26, "admission": "optimistic", "overcommit": 0.1},
        {"num_blocks": 26, "admission": "optimistic", "overcommit": 0.1, "max_batch_tokens": 9, "prefix_cache": False},
    ],
    ids=["whole", "chunks", "uncached chunks", "blocks of one", "two at a time", "preempted", "preempted in chunks"],
)
def test_seeded_requests_give_the_same_tokens_in_any_batch_chunk_and_after_preemption(
    settings: dict[str, object],
) -> None:
    """TensorRT-LLM#1742: the seed belonged to the row of the batch, so a request was not reproducible."""
    engine = Engine(make_core(**{"num_blocks": 80} | settings))  # type: ignore[arg-type]
    for name, params in SAMPLED.items():
        engine.submit(name, PROMPT, 20, **params)  # type: ignore[arg-type]
    engine.run()
    assert {name: engine.tokens(name) for name in SAMPLED} == expected()
    preemptions = sum(engine.preemptions(name) for name in SAMPLED)
    assert (preemptions > 0) == ("admission" in settings)


def test_seeded_requests_on_a_real_model_repeat_themselves_however_they_are_run(tiny_model: TinyModel) -> None:
    prompt = [token + 200 for token in PROMPT]

    def run(together: bool, **settings: object) -> dict[str, list[int]]:
        engine = tiny_model.engine(**settings)
        for name, params in SAMPLED.items():
            engine.submit(name, prompt, 15, ignore_eos=True, **params)  # type: ignore[arg-type]
            if not together:
                engine.run()
        engine.run()
        return {name: engine.tokens(name) for name in SAMPLED}

    alone = run(together=False)
    assert len({tuple(tokens) for tokens in alone.values()}) == len(SAMPLED)
    assert run(together=True) == alone
    assert run(together=True, max_batch_tokens=9, prefix_cache=False) == alone
    per_block = 4 * 3 * 2 * 2 * 8 * 4  # tokens, layers, K and V, heads, head size, bytes
    tiny_pool = {"kv_memory_bytes": 65 * per_block, "admission": "optimistic", "overcommit": 0.1}
    assert run(together=True, **tiny_pool) == alone


def test_the_choices_of_a_seeded_request_are_those_of_the_definition_in_any_chunk_size() -> None:
    for chunk in (9, 200):
        engine = Engine(make_core(num_blocks=60, max_batch_tokens=chunk))
        params = engine.submit("n", PROMPT, 10, n=5, temperature=1.3, seed=77)
        engine.submit("one", PROMPT, 10, temperature=1.3, seed=77)
        engine.run()
        choices = [engine.tokens("n", choice) for choice in range(5)]
        assert choices == [ExactModel().continuation(PROMPT, 10, params, choice) for choice in range(5)]
        assert engine.tokens("one") == choices[0]
        assert len({tuple(tokens) for tokens in choices}) == 5


def test_a_request_without_a_seed_keeps_its_stream_through_a_preemption_and_shares_it_with_nobody() -> None:
    engine = Engine(make_core(max_running=2, preempt_lower_priority=True))
    for name in ("a", "b"):
        engine.submit(name, PROMPT, 25, priority=9, temperature=5.0)
    for _ in range(5):
        engine.step()
    before = engine.tokens("b")
    engine.submit("high", some_tokens(3), 2, priority=0)
    engine.run()
    assert engine.preemptions("b") == 1
    assert engine.tokens("b")[: len(before)] == before
    assert engine.tokens("a") != engine.tokens("b")


# -- filters, and rows beside rows --------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 7, 8, 64])
def test_ties_at_the_kth_logit_keep_exactly_k_tokens_in_a_batch_of_any_size(rows: int) -> None:
    """vllm#50979: from eight rows on another kernel ran, which kept a different number of tied tokens."""
    logits = torch.tensor([[0.0, 2.0, 1.0, 1.0, 1.0, 1.0, -1.0]]).repeat(rows, 1)
    drawn: set[int] = set()
    for position in range(-(-400 // rows)):
        drawn |= set(sample(logits, [state(7, top_k=3, temperature=5.0, seed=seed) for seed in range(rows)], position))
    assert drawn == {1, 2, 3}


def test_equal_probabilities_with_top_k_two_reach_two_tokens() -> None:
    """flashinfer#3774: of .4 .3 .3 0 three tokens could be drawn."""
    logits = torch.tensor([[0.4, 0.3, 0.3, 1e-30]]).log().repeat(2000, 1)
    drawn = sample(logits, [state(4, top_k=2, seed=seed) for seed in range(2000)])
    assert set(drawn) == {0, 1}


@pytest.mark.parametrize(
    ("params", "reachable"),
    [
        ({"top_k": 1, "top_p": 0.8}, {1}),
        ({"top_p": 0.5}, {1}),
        ({"top_p": 0.59}, {1}),
        ({"top_p": 0.61}, {1, 0}),
        ({"top_p": 1.0}, {0, 1, 2}),
        ({"top_k": 2, "top_p": 0.67}, {1, 0}),
        ({"top_k": 2, "top_p": 0.66}, {1}),
        ({"min_p": 0.49}, {1, 0}),
        ({"min_p": 0.51}, {1}),
        ({"min_p": 1.0}, {1}),
    ],
)
def test_the_first_token_always_stays_and_the_rest_is_cut_where_the_definition_cuts(
    params: dict[str, Any], reachable: set[int]
) -> None:
    """mlx-lm#388: probabilities .3 .6 .1. A first token above top_p masked everything, or top_p 1 was the arg-max."""
    logits = torch.tensor([[0.3, 0.6, 0.1]], dtype=torch.float64).log().float().repeat(400, 1)
    drawn = sample(logits, [state(3, seed=seed, **params) for seed in range(400)])
    assert set(drawn) == reachable


class FlatModel(ExactModel):
    """Every token is as likely as any other."""

    def logits_after(self, tokens: Sequence[int]) -> torch.Tensor:
        return torch.zeros(self.vocab_size)


@pytest.mark.parametrize("top_p", [1e-30, 1e-9, 0.5, 1.0])
def test_all_logits_equal_never_draw_an_id_outside_the_vocabulary(top_p: float) -> None:
    """TensorRT-LLM#1590: with a tiny top_p an id past the end came back. Through the engine it would end it."""
    engine = Engine(make_core(FlatModel(vocab_size=33)))
    engine.submit("a", (1, 2, 3), 25, n=4, temperature=1.0, top_p=top_p, seed=1)
    engine.run()
    drawn = {token for choice in range(4) for token in engine.tokens("a", choice)}
    assert max(drawn) < 33
    assert (drawn == {0}) == (top_p < 1 / 33)


@pytest.mark.parametrize("penalised_first", [True, False])
def test_a_penalised_request_beside_plain_ones_changes_neither(penalised_first: bool) -> None:
    """vllm#5607: batched after a request without penalties, shapes were wrong or the penalty met another row."""
    penalties = {"repetition_penalty": 1.8, "presence_penalty": 0.7, "frequency_penalty": 0.4}
    asks: dict[str, dict[str, float]] = {
        "plain": {},
        "penalised": penalties,
        "sampled": {"temperature": 1.0, "seed": 4},
    }
    alone = {}
    for name, params in asks.items():
        engine = Engine(make_core())
        engine.submit(name, PROMPT, 20, **params)  # type: ignore[arg-type]
        engine.run()
        alone[name] = engine.tokens(name)
    order = sorted(asks, key=lambda name: (name == "penalised") != penalised_first)
    engine = Engine(make_core(num_blocks=60))
    for name in order:
        engine.submit(name, PROMPT, 20, **asks[name])  # type: ignore[arg-type]
        engine.step()
    engine.run()
    assert {name: engine.tokens(name) for name in asks} == alone
    assert alone["plain"] != alone["penalised"]


def test_penalties_count_the_same_tokens_after_a_preemption() -> None:
    penalties = {"repetition_penalty": 1.8, "frequency_penalty": 0.9}
    undisturbed = Engine(make_core())
    undisturbed.submit("low", PROMPT, 25, **penalties)  # type: ignore[arg-type]
    undisturbed.run()
    engine = Engine(make_core(max_running=1, preempt_lower_priority=True))
    engine.submit("low", PROMPT, 25, priority=9, **penalties)  # type: ignore[arg-type]
    for number in range(3):
        for _ in range(5):
            engine.step()
        engine.submit(f"high{number}", some_tokens(3), 2, priority=0)
    engine.run()
    assert engine.preemptions("low") == 3
    assert engine.tokens("low") == undisturbed.tokens("low")
