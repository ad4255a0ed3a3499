"""A request can be ended in every state, under an id that is its own, and what it held is free at once."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import pytest
from weir.config import Settings
from weir.engine.errors import CancelledError, DeadlineError, EngineFailedError, InvalidRequestError
from weir.engine.process import EngineClient
from weir.engine.request import Admitted, Delta, Done, Event, GenerateRequest, SamplingParams
from weir.engine.unread import NoMeter

from tests.cases.engines import Engine, ExactModel, make_core, some_tokens
from tests.contract.decode import eventually

GREEDY = SamplingParams(100, temperature=0.0)
PROMPT = some_tokens(20)


def just_submitted(engine: Engine, deadline: float | None = None) -> None:
    engine.submit("victim", PROMPT, 9, deadline=deadline)


def queued(engine: Engine, deadline: float | None = None) -> None:
    engine.submit("first", some_tokens(4, seed=1), 9)
    engine.step()
    engine.submit("victim", PROMPT, 9, deadline=deadline)
    engine.step()
    assert engine.core.snapshot().queued == 1


def prefilling(engine: Engine, deadline: float | None = None) -> None:
    engine.submit("victim", PROMPT, 9, deadline=deadline)
    engine.step()
    assert engine.events["victim"] == [engine.admitted("victim")]


def decoding(engine: Engine, deadline: float | None = None) -> None:
    engine.submit("victim", PROMPT, 9, deadline=deadline)
    while len(engine.tokens("victim")) < 3:
        engine.step()


def preempted(engine: Engine, deadline: float | None = None) -> None:
    decoding(engine, deadline)
    engine.submit("high", some_tokens(4, seed=2), 9, priority=0)
    engine.step()
    assert engine.preemptions("victim") == 1


def resumed(engine: Engine, deadline: float | None = None) -> None:
    preempted(engine, deadline)
    while len(engine.tokens("victim")) < 4:
        engine.step()


STATES: list[Callable[..., None]] = [just_submitted, queued, prefilling, decoding, preempted, resumed]
every_state = pytest.mark.parametrize("reach", STATES, ids=[state.__name__ for state in STATES])


@every_state
def test_a_request_is_cancelled_in_every_state_with_one_event_and_nothing_left(reach: Callable[..., None]) -> None:
    """sglang#18701: one that was set aside when it was aborted kept its copy for ever."""
    engine = Engine(make_core(max_running=1, max_batch_tokens=8, preempt_lower_priority=True))
    reach(engine)
    engine.cancel("victim")
    assert isinstance(engine.error("victim"), CancelledError)
    budget = engine.core.snapshot()
    assert budget.queued == 0
    assert (budget.kv_used_tokens > 0) == (budget.running > 0) == (reach in (queued, preempted))  # the other one's
    engine.run()
    engine.events.clear()
    engine.submit("victim", PROMPT, 3)  # its id is free again
    engine.run()
    assert engine.tokens("victim") == ExactModel().continuation(PROMPT, 3, GREEDY)


@every_state
def test_a_deadline_ends_a_request_in_every_state(reach: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    engine = Engine(make_core(max_running=1, max_batch_tokens=8, preempt_lower_priority=True))
    reach(engine, deadline=1500.0)
    assert not engine.ended("victim")
    now = 1500.0
    engine.step()
    error = engine.error("victim")
    assert isinstance(error, DeadlineError)
    assert (error.waited_s, error.in_queue) == (500.0, reach in (just_submitted, queued))
    engine.run()


def test_a_request_cancelled_in_the_queue_is_never_computed() -> None:
    """vllm#7111: it was prefilled first, and then thrown away."""
    model = ExactModel()
    engine = Engine(make_core(model, max_running=1))
    engine.submit("first", some_tokens(4), 3)
    engine.submit("queued", some_tokens(30, seed=1), 3)
    engine.step()
    engine.cancel("queued")
    engine.run()
    assert model.computed == 4 + 3 - 1


def test_cancelling_an_unknown_or_a_finished_request_changes_nothing() -> None:
    """tenstorrent/vllm#145: aborting an id that had ended crashed the engine."""
    engine = Engine(make_core())
    engine.cancel("never was")
    engine.submit("a", PROMPT, 3)
    engine.run()
    said = list(engine.events["a"])
    engine.cancel("a")
    engine.cancel("a")
    assert engine.events["a"] == said
    assert not engine.core.has_work


def test_cancelling_twice_says_so_once() -> None:
    engine = Engine(make_core())
    engine.submit("a", PROMPT, 9)
    engine.step()
    engine.core.cancel("a")
    engine.core.cancel("a")
    assert [type(event).__name__ for event in engine.core.take_events()] == ["Failed"]


def test_the_others_of_a_batch_do_not_notice_that_one_was_cancelled() -> None:
    engine = Engine(make_core(num_blocks=60))
    prompts = {f"r{number}": some_tokens(9 + number, seed=number) for number in range(5)}
    for name, prompt in prompts.items():
        engine.submit(name, prompt, 12)
    for name in ("r1", "r3"):
        for _ in range(3):
            engine.step()
        engine.cancel(name)
    engine.run()
    for name in ("r0", "r2", "r4"):
        assert engine.tokens(name) == ExactModel().continuation(prompts[name], 12, GREEDY)


def test_cancelling_one_of_two_that_share_a_prefix_leaves_the_other_its_blocks() -> None:
    engine = Engine(make_core())
    for name in ("one", "other"):
        engine.submit(name, PROMPT, 20)
        engine.step()
    engine.cancel("one")
    for number in range(4):  # whatever was freed is used by somebody else
        engine.submit(f"new{number}", some_tokens(12, seed=number), 4)
    engine.run()
    assert engine.tokens("other") == ExactModel().continuation(PROMPT, 20, GREEDY)


def test_a_second_live_request_of_the_same_id_is_refused_and_the_first_is_unharmed() -> None:
    """vllm#15041: two live requests with one id crashed the engine, or mixed their output."""
    engine = Engine(make_core())
    engine.submit("twin", PROMPT, 6)
    engine.step()
    with pytest.raises(InvalidRequestError, match="'twin' is live already"):
        engine.submit("twin", some_tokens(5, seed=9), 6)
    engine.run()
    assert engine.tokens("twin") == ExactModel().continuation(PROMPT, 6, GREEDY)


def test_the_last_text_is_out_before_the_end_is() -> None:
    """sglang#19895: the stream ended before the last piece of text was sent."""
    engine = Engine(make_core())
    engine.submit("a", PROMPT, 4, n=2)
    engine.run()
    *others, last = engine.events["a"]
    assert isinstance(last, Done)
    assert all(isinstance(event, Admitted | Delta) for event in others)
    for choice in range(2):
        assert engine.finish("a", choice) is not None
        assert len(engine.deltas("a", choice)) == 4


# -- the engine in its own process --------------------------------------------------------------------------------


@pytest.fixture
async def process(dummy_settings: Callable[..., Settings]) -> AsyncIterator[EngineClient]:
    """The engine process over random weights, ready."""
    client = EngineClient(dummy_settings(max_model_len=512, kv_memory_bytes=2**20))
    client.start()
    await client.ready()
    yield client
    await client.stop(10)


def endless(request_id: str) -> GenerateRequest:
    return GenerateRequest(request_id, PROMPT, SamplingParams(490, ignore_eos=True), arrival=time.monotonic())


async def test_an_id_may_be_used_again_before_the_engine_has_heard_of_its_cancellation(process: EngineClient) -> None:
    """vllm#57061: a cancel that overtook its submit left state behind for ever."""
    for _ in range(20):
        ticket = process.reserve(600, "")
        process.submit(endless("same"), ticket, NoMeter()).close()
    short = replace(endless("same"), params=SamplingParams(3, ignore_eos=True))
    last = process.submit(short, process.reserve(600, ""), NoMeter())
    events: list[Event] = [event async for event in last]
    assert [type(event).__name__ for event in events] == ["Admitted", "Delta", "Delta", "Delta", "Done"]
    await eventually(lambda: not process._streams and process.snapshot().kv_used_tokens == 0, timeout_s=30)
    budget = process.snapshot()
    assert (budget.running, budget.queued, budget.queued_tokens) == (0, 0, 0)


async def test_a_request_that_runs_when_the_engine_is_stopped_is_told_so(process: EngineClient) -> None:
    stream = process.submit(endless("cut"), process.reserve(600, ""), NoMeter())
    events = aiter(stream)
    assert isinstance(await anext(events), Admitted)
    await process.stop(10)
    with pytest.raises(EngineFailedError, match="the engine was stopped"):
        async for _ in events:
            pass
    assert not process.failed.done()  # nobody has to act on it
    assert process.snapshot().queued == 0
