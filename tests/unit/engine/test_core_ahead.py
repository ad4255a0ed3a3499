"""The engine with a device that is always one step behind the host: what the clients see is the same."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from weir.engine.blocks import BlockPool
from weir.engine.core import EngineCore
from weir.engine.detokenizer import TokenTable
from weir.engine.errors import CancelledError, DeadlineError
from weir.engine.plan import Chunk, StepPlan
from weir.engine.records import StepRecord
from weir.engine.request import ChoiceFinish, Delta, Done, FinishReason, SamplingParams

from tests.cases.engines import Engine, ExactModel, make_core, some_tokens

from .queued_runner import QueuedRunner

PROMPT = (5, 6, 7, 8, 9)


class Ahead:
    """An engine one step ahead, and the runner under it."""

    def __init__(self, model: ExactModel | None = None, **options: Any) -> None:
        self.runners: list[QueuedRunner] = []

        def run_by(model: ExactModel, kv: Any, pool: BlockPool) -> QueuedRunner:
            self.runners.append(QueuedRunner(model, kv, pool))
            return self.runners[0]

        self.core: EngineCore = make_core(model, run_by=run_by, **options)
        self.engine = Engine(self.core)

    @property
    def launched_ahead(self) -> int:
        return self.runners[0].launched_ahead


def run_and_record(engine: Engine) -> list[StepRecord]:
    records = []
    while engine.core.has_work:
        record = engine.step().record
        if record is not None:
            records.append(record)
    return records


def usage(engine: Engine, request_id: str) -> tuple[int, int]:
    (done,) = (event for event in engine.events[request_id] if isinstance(event, Done))
    return done.usage.completion_tokens, sum(len(engine.deltas(request_id, i)) for i in range(8))


def test_each_step_is_launched_before_the_one_before_it_is_collected() -> None:
    ahead = Ahead()
    ahead.engine.submit("a", PROMPT, 4)
    first = ahead.engine.step()
    assert (first.record, first.idle) == (None, False)
    records = run_and_record(ahead.engine)
    # The prompt gives the first of four tokens, three decodes the others; the fourth step has none behind it.
    assert [(r.step, r.prefill_tokens, r.decode_tokens) for r in records] == [
        (1, 5, 0),
        (2, 0, 1),
        (3, 0, 1),
        (4, 0, 1),
    ]
    assert [r.finished for r in records] == [(), (), (), ("a",)]
    assert ahead.launched_ahead == 3
    assert ahead.engine.tokens("a") == ExactModel().continuation(PROMPT, 4, SamplingParams(4, temperature=0.0))


def test_the_phases_of_a_step_are_parts_of_its_span() -> None:
    ahead = Ahead()
    ahead.engine.submit("a", PROMPT, 6)
    records = run_and_record(ahead.engine)
    for record in records:
        phases = record.phases
        parts = (phases.plan_s, phases.launch_s, phases.device_s, phases.collect_s, phases.emit_s)
        assert min(parts) >= 0
        assert sum(parts) <= (record.end_ns - record.start_ns) / 1e9 + 1e-6


def test_a_stop_token_found_a_step_late_ends_the_text_and_the_token_behind_it_is_dropped() -> None:
    ahead = Ahead(ExactModel(says={PROMPT: (11, 12, 3, 13, 14)}), eos=(3,))
    ahead.engine.submit("a", PROMPT, 20)
    records = run_and_record(ahead.engine)
    assert ahead.engine.tokens("a") == [11, 12, 3]
    assert ahead.engine.finish("a") == ChoiceFinish(FinishReason.STOP)
    assert usage(ahead.engine, "a") == (3, 3)
    # The fourth step was on its way when the third one's token ended the request, and is reported too.
    assert [r.finished for r in records] == [(), (), ("a",), ()]
    assert records[3].decode_tokens == 1
    ahead.engine.run()


def test_a_stop_string_found_a_step_late_ends_the_text() -> None:
    table = TokenTable([bytes([97 + i % 26]) for i in range(64)])
    ahead = Ahead(ExactModel(says={PROMPT: (7, 8, 9, 10, 11)}), table=table)
    ahead.engine.submit("a", PROMPT, 20, stop=("ij",))
    ahead.engine.run()
    assert ahead.engine.text("a") == "h"
    assert ahead.engine.finish("a") == ChoiceFinish(FinishReason.STOP, "ij")
    assert usage(ahead.engine, "a") == (3, 3)


def test_a_request_cancelled_with_a_step_in_flight_frees_its_blocks_at_once_and_the_next_holder_is_not_disturbed() -> (
    None
):
    ahead = Ahead(num_blocks=4, prefix_cache=False)
    ahead.engine.submit("a", some_tokens(12, seed=1), 4)
    ahead.engine.step()
    ahead.engine.step()
    ahead.engine.cancel("a")
    assert ahead.core.snapshot().kv_free_tokens == 16
    assert isinstance(ahead.engine.error("a"), CancelledError)
    assert ahead.core.has_work  # the step is still to be collected
    prompt = some_tokens(9, seed=2)
    params = ahead.engine.submit("b", prompt, 6)  # needs all four blocks
    records = run_and_record(ahead.engine)
    assert ahead.engine.tokens("b") == ExactModel().continuation(prompt, 6, params)
    assert not ahead.engine.tokens("a")[2:]
    assert [r.step for r in records] == list(range(2, 2 + len(records)))
    ahead.engine.run()


def test_prompt_scores_of_a_cancelled_request_do_not_reach_the_next_one_of_its_name() -> None:
    ahead = Ahead(max_running=4, max_batch_tokens=12)
    ahead.engine.submit("a", some_tokens(20, seed=1), 1, prompt_logprobs=1)
    ahead.engine.step()
    ahead.engine.step()  # the second chunk is in flight
    ahead.engine.cancel("a")
    del ahead.engine.events["a"]
    ahead.engine.submit("a", PROMPT, 1, prompt_logprobs=1)
    ahead.engine.run()
    (delta,) = (event for event in ahead.engine.events["a"] if isinstance(event, Delta))
    assert delta.prompt_logprobs is not None
    assert [None if score is None else score.token_id for score in delta.prompt_logprobs] == [None, *PROMPT[1:]]


def test_a_preemption_by_a_step_that_then_has_nothing_to_compute_is_told_by_the_next_one() -> None:
    told = StepPlan((), 0, (), (), 3)
    chunk = Chunk(None, 0, 1, True)  # type: ignore[arg-type]
    following = StepPlan((chunk,), 1, ("b",), ("c",), 4)  # type: ignore[arg-type]
    merged = following.after(replace(told, admitted=("a",), preempted=("d",)))  # type: ignore[arg-type]
    assert merged == StepPlan((chunk,), 1, ("a", "b"), ("d", "c"), 7)  # type: ignore[arg-type]


def test_a_cancelled_request_leaves_a_step_to_collect_and_nothing_else() -> None:
    ahead = Ahead()
    ahead.engine.submit("a", PROMPT, 4)
    ahead.engine.step()
    ahead.engine.cancel("a")
    last = ahead.engine.step()
    assert last.record is not None
    assert (last.record.prefill_tokens, last.record.finished, last.events) == (5, (), [])
    assert not ahead.core.has_work
    assert ahead.engine.step().idle


def test_a_deadline_that_passes_with_a_step_in_flight_ends_the_request_once() -> None:
    ahead = Ahead()
    ahead.engine.submit("a", PROMPT, 50, deadline=time.monotonic() + 0.05)
    ahead.engine.step()
    time.sleep(0.06)
    ahead.engine.run()
    assert isinstance(ahead.engine.error("a"), DeadlineError)


def test_rows_that_need_the_host_run_in_order_beside_rows_that_do_not() -> None:
    ahead, in_order = Ahead(), Engine(make_core())
    for engine in (ahead.engine, in_order):
        engine.submit("plain", PROMPT, 12)
        engine.submit("penalised", some_tokens(7), 4, repetition_penalty=2.0, frequency_penalty=0.5)
        engine.submit("scored", some_tokens(6, seed=3), 3, logprobs=2, prompt_logprobs=1)
        engine.run()
    for name in ("plain", "penalised", "scored"):
        assert ahead.engine.deltas(name) == in_order.deltas(name)
    # Four steps run in order; the plain rows go ahead when they are alone.
    assert ahead.launched_ahead == 12 - 4 - 1


def test_a_choice_that_ends_before_its_next_step_is_launched_is_left_out_of_it() -> None:
    ahead = Ahead(ExactModel(says={PROMPT: (11, 12, 3)}), eos=(3,))
    ahead.engine.submit("plain", PROMPT, 20)
    ahead.engine.submit("penalised", some_tokens(7), 6, repetition_penalty=2.0, ignore_eos=True)
    records = run_and_record(ahead.engine)
    assert [r.decode_tokens for r in records] == [0, 2, 2, 1, 1, 1]
    assert records[2].finished == ("plain",)
    assert ahead.engine.tokens("plain") == [11, 12, 3]
    assert usage(ahead.engine, "plain") == (3, 3)
    assert usage(ahead.engine, "penalised") == (6, 6)
    assert ahead.launched_ahead == 0


def test_flushing_the_prefix_cache_with_a_step_in_flight_loses_no_block() -> None:
    ahead = Ahead(block_size=2)
    prompt = some_tokens(9)
    params = ahead.engine.submit("a", prompt, 6)
    for _ in range(3):
        ahead.engine.step()
        ahead.core.flush_prefix_cache()
    ahead.engine.run()
    ahead.engine.submit("b", prompt, 6)
    ahead.engine.run()
    assert ahead.engine.tokens("a") == ahead.engine.tokens("b") == ExactModel().continuation(prompt, 6, params)
    ahead.core.flush_prefix_cache()
    assert ahead.core.snapshot().kv_free_tokens == 80


@dataclass(frozen=True)
class Arrival:
    after: int
    prompt: tuple[int, ...]
    max_tokens: int
    n: int
    priority: int
    kind: str
    cancel_in: int | None


KINDS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "seeded": {"temperature": 1.1, "top_p": 0.9, "top_k": 12, "seed": 4},
    "penalised": {"repetition_penalty": 1.7},
    "scored": {"logprobs": 1},
    "late stops": {"min_tokens": 3},
}
EOS = (1, 2, 3)
_arrivals = st.builds(
    Arrival,
    after=st.integers(0, 4),
    prompt=st.builds(
        lambda root, length: tuple((root * 17 + 5 * i) % 64 for i in range(length)),
        st.integers(0, 2),
        st.integers(1, 30),
    ),
    max_tokens=st.integers(3, 20),
    n=st.sampled_from([1, 1, 2, 3]),
    priority=st.sampled_from([0, 5, 9]),
    kind=st.sampled_from(["greedy", "greedy", "greedy", *KINDS]),
    cancel_in=st.none() | st.none() | st.integers(0, 12),
)


def drive(core: EngineCore, arrivals: Sequence[Arrival], flush_every: int) -> tuple[Engine, list[StepRecord], set[str]]:
    """Serve the arrivals; the engine, its records, and who was cancelled before it ended."""
    engine, records, cancels, cancelled = Engine(core), [], {}, set()
    clock = 0

    def step() -> None:
        nonlocal clock
        record = engine.step().record
        clock += 1
        if record is not None:
            records.append(record)
        if clock % flush_every == 0:
            core.flush_prefix_cache()
        for name in [name for name, at in cancels.items() if at <= clock]:
            del cancels[name]
            if not engine.ended(name):
                engine.cancel(name)
                cancelled.add(name)

    for number, arrival in enumerate(arrivals):
        for _ in range(arrival.after):
            step()
        name = f"r{number}"
        engine.submit(
            name, arrival.prompt, arrival.max_tokens, n=arrival.n, priority=arrival.priority, **KINDS[arrival.kind]
        )
        if arrival.cancel_in is not None:
            cancels[name] = clock + arrival.cancel_in
    while core.has_work:
        step()
    engine.run()
    return engine, records, cancelled


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(
    arrivals=st.lists(_arrivals, min_size=1, max_size=8),
    num_blocks=st.integers(26, 50),
    block_size=st.sampled_from([4, 5]),
    max_running=st.integers(3, 6),
    spare_tokens=st.integers(1, 20),
    admission=st.sampled_from(["guaranteed", "optimistic", "reserve"]),
    preempt=st.booleans(),
    prefix_cache=st.booleans(),
    flush_every=st.sampled_from([3, 10**9]),
)
def test_any_trace_gives_the_tokens_of_an_engine_that_runs_in_order(
    arrivals: list[Arrival],
    num_blocks: int,
    block_size: int,
    max_running: int,
    spare_tokens: int,
    admission: str,
    preempt: bool,
    prefix_cache: bool,
    flush_every: int,
) -> None:
    options: dict[str, Any] = {
        "num_blocks": num_blocks,
        "block_size": block_size,
        "max_running": max_running,
        "max_batch_tokens": max_running + spare_tokens,
        "admission": admission,
        "overcommit": 0.2,
        "preempt_lower_priority": preempt,
        "prefix_cache": prefix_cache,
        "eos": EOS,
    }
    in_order, _, _ = drive(make_core(**options), [_uncancelled(arrival) for arrival in arrivals], 10**9)
    ahead = Ahead(**options)
    engine, records, cancelled = drive(ahead.core, arrivals, flush_every)
    model = ExactModel()
    for number, arrival in enumerate(arrivals):
        name = f"r{number}"
        for index in range(arrival.n):
            made, whole = engine.tokens(name, index), in_order.tokens(name, index)
            assert made == (whole[: len(made)] if name in cancelled else whole)
            if arrival.kind in ("greedy", "seeded"):
                params = SamplingParams(arrival.max_tokens, **({"temperature": 0.0} | KINDS[arrival.kind]))
                assert whole == _until_eos(model.continuation(arrival.prompt, arrival.max_tokens, params, index))
        if name not in cancelled:
            completion_tokens, emitted = usage(engine, name)
            assert completion_tokens == emitted
    assert [record.step for record in records] == list(range(1, len(records) + 1))
    assert ahead.core.snapshot().step == len(records)
    computed = sum(record.decode_tokens + record.prefill_tokens for record in records)
    assert ahead.core.snapshot().computed_tokens == computed
    finished = [name for record in records for name in record.finished]
    assert sorted(finished) == sorted({f"r{number}" for number in range(len(arrivals))} - cancelled)


def _uncancelled(arrival: Arrival) -> Arrival:
    return Arrival(arrival.after, arrival.prompt, arrival.max_tokens, arrival.n, arrival.priority, arrival.kind, None)


def _until_eos(tokens: list[int]) -> list[int]:
    ends = [place for place, token in enumerate(tokens) if token in EOS]
    return tokens[: ends[0] + 1] if ends else tokens
