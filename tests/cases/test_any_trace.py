"""Random traces through the whole engine over an exact model: every request gets the tokens of the definition."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from weir.engine.errors import InvalidRequestError
from weir.engine.request import SamplingParams

from tests.cases.engines import Engine, ExactModel, make_core, some_tokens

EOS = (1, 2)


@dataclass(frozen=True)
class Ask:
    """A request, the steps before it arrives, and the steps until it is cancelled, if it is."""

    after: int
    prompt: tuple[int, ...]
    n: int
    priority: int
    cancel_in: int | None
    params: SamplingParams


# Prompts share prefixes on purpose: they are drawn from a few roots.
_prompts = st.builds(
    lambda root, shared, own: (*some_tokens(20, seed=root)[:shared], *own),
    st.integers(0, 2),
    st.integers(1, 20),
    st.lists(st.integers(10, 13), max_size=6),
)
_params = st.builds(
    SamplingParams,
    max_tokens=st.integers(1, 20),
    temperature=st.sampled_from([0.0, 1.0, 2.0]),
    seed=st.integers(0, 5),
    top_k=st.sampled_from([0, 3]),
    top_p=st.sampled_from([1.0, 0.8]),
    ignore_eos=st.booleans(),
    stop_token_ids=st.sampled_from([(), (), (9, 10)]),
    prompt_logprobs=st.sampled_from([None, None, None, 0]),
)
_asks = st.builds(
    Ask,
    after=st.integers(0, 6),
    prompt=_prompts,
    n=st.sampled_from([1, 1, 2, 3, 4]),
    priority=st.sampled_from([0, 5, 9]),
    cancel_in=st.sampled_from([None, None, None, 0, 2, 9]),
    params=_params,
)
_engines = st.fixed_dictionaries(
    {
        "num_blocks": st.integers(3, 40),
        "block_size": st.sampled_from([1, 2, 4, 8]),
        "max_running": st.integers(1, 6),
        "admission": st.sampled_from(["guaranteed", "optimistic", "optimistic", "reserve"]),
        "overcommit": st.sampled_from([0.05, 0.3, 0.8]),
        "preempt_lower_priority": st.booleans(),
        "prefix_cache": st.booleans(),
    }
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(asks=st.lists(_asks, min_size=1, max_size=10), engine_settings=_engines, spare_tokens=st.integers(1, 30))
def test_whoever_shares_the_engine_and_whatever_is_evicted_every_request_gets_its_own_tokens(
    asks: list[Ask], engine_settings: dict[str, int], spare_tokens: int
) -> None:
    model = ExactModel()
    budget = engine_settings["max_running"] + spare_tokens
    engine = Engine(make_core(model, **engine_settings, max_batch_tokens=budget, eos=EOS))  # type: ignore[arg-type]
    cancels: list[tuple[int, str]] = []
    expected: dict[str, Ask] = {}
    step = 0
    for number, ask in enumerate(asks):
        for _ in range(ask.after):
            engine.step()
            step += 1
            _cancel(engine, [name for due, name in cancels if due == step])
        try:
            _submit(engine, f"r{number}", ask)
        except InvalidRequestError:
            continue  # larger than this engine
        expected[f"r{number}"] = ask
        if ask.cancel_in is not None:
            cancels.append((step + 1 + ask.cancel_in, f"r{number}"))
    for _ in range(12):
        engine.step()
        step += 1
        _cancel(engine, [name for due, name in cancels if due == step])
    engine.run()
    for name, ask in expected.items():
        if ask.cancel_in is None:
            _check(engine, name, ask, model)
        assert engine.ended(name)


def _submit(engine: Engine, name: str, ask: Ask) -> None:
    fields = {field: getattr(ask.params, field) for field in SamplingParams.__dataclass_fields__}
    engine.submit(name, ask.prompt, fields.pop("max_tokens"), n=ask.n, priority=ask.priority, **fields)


def _cancel(engine: Engine, names: list[str]) -> None:
    for name in names:
        engine.cancel(name)


def _check(engine: Engine, name: str, ask: Ask, model: ExactModel) -> None:
    stops = {*ask.params.stop_token_ids, *(() if ask.params.ignore_eos else EOS)}
    for choice in range(ask.n):
        tokens = model.continuation(ask.prompt, ask.params.max_tokens, ask.params, choice)
        length = next((count for count, token in enumerate(tokens, start=1) if token in stops), len(tokens))
        assert engine.tokens(name, choice) == tokens[:length]
        assert engine.finish(name, choice) is not None
    assert engine.admitted(name).prompt_tokens == len(ask.prompt)
    if ask.params.prompt_logprobs is not None:
        none, *scores = engine.prompt_logprobs(name)
        assert none is None
        assert len(scores) == len(ask.prompt) - 1
        for position, score in enumerate(scores):
            row = torch.log_softmax(model.logits_after(ask.prompt[: position + 1]), dim=-1)
            assert score is not None
            assert score.logprob == pytest.approx(float(row[ask.prompt[position + 1]]), abs=1e-5)
