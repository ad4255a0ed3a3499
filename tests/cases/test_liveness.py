"""Nothing waits for ever: what can never run is refused at once, and what is admitted always ends."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable

import pytest
from weir.client import AsyncClient, BudgetExhaustedError, Completion
from weir.config import ConfigError, Settings
from weir.engine.blocks import BlockHasher, BlockPool
from weir.engine.errors import InvalidRequestError
from weir.engine.load import load_engine
from weir.engine.plan import SchedulerLimits, StepPlan
from weir.engine.queue_gate import QueueGate
from weir.engine.records import QueueOutlook
from weir.engine.request import ChoiceFinish, FinishReason, SamplingParams
from weir.engine.scheduler import Scheduler
from weir.engine.tenants import Tenants
from weir.engine.waiting import WaitingQueue

from tests.cases.conftest import TinyModel
from tests.cases.engines import Engine, ExactModel, make_core, some_tokens
from tests.contract.decode import eventually
from tests.contract.fake_engine import FakeEngine
from tests.unit.engine.harness import Simulation, make_scheduler, spec

LENGTH = ChoiceFinish(FinishReason.LENGTH)
GREEDY = SamplingParams(3, temperature=0.0)


def refused_field(engine: Engine, prompt: int, max_tokens: int) -> tuple[str, str]:
    """The one wrong field of a request that is refused at once, and its description."""
    with pytest.raises(InvalidRequestError) as refused:
        engine.submit("refused", some_tokens(prompt), max_tokens)
    (violation,) = refused.value.violations
    return violation.field, violation.description


def serves(engine: Engine, request_id: str = "next") -> bool:
    """Whether the engine still does what it should."""
    prompt = some_tokens(3, seed=99)
    engine.submit(request_id, prompt, 3)
    engine.run()
    return engine.tokens(request_id) == ExactModel().continuation(prompt, 3, GREEDY)


def names(requests: Iterable[object]) -> list[str]:
    return [request.request_id for request in requests]  # type: ignore[attr-defined]


# -- what can never fit -------------------------------------------------------------------------------------------


def test_a_prompt_larger_than_the_pool_but_not_than_the_model_is_refused_and_the_next_is_served() -> None:
    """vllm#35541: 63 blocks wanted, 49 there, under the model length: it waited for ever without an error."""
    engine = Engine(make_core(num_blocks=49, block_size=16, max_model_len=2048))
    field, description = refused_field(engine, 1002, 1)
    assert field == "max_tokens"
    assert "needs 1008 KV tokens" in description
    assert "at most 784 can ever be free" in description
    assert serves(engine)


def test_a_pool_that_holds_no_request_of_the_model_length_fails_at_the_start(
    dummy_settings: Callable[..., Settings],
) -> None:
    """vllm#27181: with one block the server started, and nothing longer than a block ever ran."""
    # 2 layers of K and V, 2 heads of 16 in float32: 512 bytes a token, 8 KiB a block of 16.
    with pytest.raises(ConfigError, match=r"holds 16 tokens, but one request of max-model-len 64 needs"):
        load_engine(dummy_settings(max_model_len=64, kv_memory_bytes=8192))
    with pytest.raises(ConfigError, match=r"holds (48|63) tokens"):
        load_engine(dummy_settings(max_model_len=64, kv_memory_bytes=4 * 8192 - 1))


def test_the_null_block_is_no_part_of_the_capacity(dummy_settings: Callable[..., Settings]) -> None:
    """vllm-rbln#957: with a block reserved, prompts of its length froze. All blocks that are counted can be used."""
    engine = Engine(load_engine(dummy_settings(max_model_len=64, kv_memory_bytes=4 * 8192)))
    assert engine.core.info.kv_total_tokens == 64
    for length in (48, 49, 63, 64):
        engine.submit(f"of {length}", some_tokens(length), 1, ignore_eos=True)
        engine.run()
        assert len(engine.tokens(f"of {length}")) == 1
    assert refused_field(engine, 65, 1)[0] == "prompt"


@pytest.mark.parametrize(("prompt", "max_tokens", "outcome"), [(7, 2, 2), (8, 1, 1), (8, 2, "max_tokens")])
def test_a_prompt_that_fills_a_pool_of_two_blocks(prompt: int, max_tokens: int, outcome: int | str) -> None:
    """nano-vllm#274: the decode after it found no block, and an assertion ended the engine."""
    engine = Engine(make_core(num_blocks=2, block_size=4, max_model_len=100))
    if isinstance(outcome, str):
        assert refused_field(engine, prompt, max_tokens)[0] == outcome
    else:
        engine.submit("a", some_tokens(prompt), max_tokens)
        engine.run()
        assert len(engine.tokens("a")) == outcome
    assert serves(engine)


def test_a_prompt_that_fits_with_a_max_tokens_that_does_not_is_refused() -> None:
    """mini-sglang: more than the pool but less than the model length span at full load, and nothing ran after it."""
    engine = Engine(make_core(num_blocks=10, block_size=4, max_model_len=1000))
    field, description = refused_field(engine, 20, 22)  # 20 + 22 - 1 = 41 slots
    assert (field, "needs 44 KV tokens" in description) == ("max_tokens", True)
    engine.submit("exactly", some_tokens(20), 21)
    engine.run()
    assert len(engine.tokens("exactly")) == 21


def test_a_prompt_over_the_model_length_is_an_error_reply() -> None:
    """mini-sglang dropped it with a log line, and its client waited for ever."""
    engine = Engine(make_core(max_model_len=64))
    assert refused_field(engine, 65, 1) == ("prompt", "has 65 tokens; the model takes 64")


def test_an_empty_prompt_is_an_error_reply() -> None:
    """vllm#7283: an empty text with a tokenizer that adds nothing is no token at all, and ended the server."""
    engine = Engine(make_core())
    assert refused_field(engine, 0, 1) == ("prompt", "is empty: at least one token is needed")
    assert serves(engine)


def test_max_tokens_zero_is_an_error_reply() -> None:
    """vllm#41334: what it means differed by version. Here it is refused; prompt_logprobs take max_tokens 1."""
    assert refused_field(Engine(make_core()), 4, 0) == ("max_tokens", "must be at least 1, got 0")


# -- the ends of the model length ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("prompt", "max_tokens"), [(32, 1), (31, 1), (31, 2), (1, 32)])
def test_a_sequence_may_reach_the_model_length_exactly_and_then_ends(prompt: int, max_tokens: int) -> None:
    """vllm#50342: a sequence at the model length had a negative number of tokens left, and an assertion fell."""
    engine = Engine(make_core(num_blocks=8, block_size=4))
    given = some_tokens(prompt)
    engine.submit("a", given, max_tokens)
    engine.run()
    assert engine.tokens("a") == ExactModel().continuation(given, max_tokens, GREEDY)
    assert engine.finish("a") == LENGTH


@pytest.mark.parametrize(("prompt", "max_tokens", "left"), [(32, 2, 1), (31, 3, 2), (1, 33, 32)])
def test_one_token_beyond_the_model_length_is_refused_with_what_is_left(
    prompt: int, max_tokens: int, left: int
) -> None:
    field, description = refused_field(Engine(make_core(num_blocks=8, block_size=4)), prompt, max_tokens)
    assert (field, description.endswith(f"model length 32 leaves ({left})")) == ("max_tokens", True)


def test_a_prompt_of_the_model_length_gives_the_token_of_the_reference_model(tiny_model: TinyModel) -> None:
    from tests.unit.models.tiny import random_tokens, reference_logits

    engine = tiny_model.engine(max_batch_tokens=100)
    length = engine.core.info.max_model_len
    prompt = random_tokens(length)
    engine.submit("full", prompt, 1, ignore_eos=True)
    engine.run()
    assert engine.tokens("full") == [int(reference_logits(tiny_model.reference, prompt, length - 1)[0].argmax())]


@pytest.mark.parametrize("prompt", [1, 4, 5, 33, 70])
def test_max_tokens_one_ends_in_the_step_that_completes_the_prompt(prompt: int) -> None:
    """A decode step more would compute a token that nobody asked for, and hold its blocks for it."""
    model = ExactModel()
    engine = Engine(make_core(model))
    engine.submit("one", some_tokens(prompt), 1)
    engine.run()
    assert engine.finish("one") == LENGTH
    assert len(engine.tokens("one")) == 1
    assert model.computed == prompt
    assert engine.core.snapshot().step == -(-prompt // 32)


def test_a_step_with_nothing_to_do_is_legal_and_says_nothing() -> None:
    """vllm#11562: a schedule of 0 tokens was an assertion."""
    core = make_core()
    for _ in range(3):
        output = core.step()
        assert (output.record, output.events) == (None, [])
    assert serves(Engine(core))


# -- who runs, and who waits --------------------------------------------------------------------------------------


def test_one_huge_max_tokens_does_not_keep_short_requests_out() -> None:
    """TensorRT-LLM#2866: its maximum was reserved at once. It is far from it while short ones come and go."""
    run = Simulation(make_scheduler(40, 4, max_running=8))
    run.submit(spec("huge", 4, 157))  # 160 slots: the whole pool, at its end
    run.step()
    for number in range(20):
        run.submit(spec(f"short{number}", 12, 4))
        run.step()
    admitted = {name: at - run.submitted_at[name] for name, at in run.admitted_at.items()}
    assert admitted == dict.fromkeys(["huge", *(f"short{number}" for number in range(20))], 0.0)
    run.run()
    assert set(run.done.values()) == {"done"}
    assert run.preemptions == 0


def test_choices_that_wait_for_their_prompt_do_not_lock_the_slots_for_ever() -> None:
    """vllm#53130: requests set aside filled max_num_seqs, and admission stopped for ever with health at 200."""
    run = Simulation(make_scheduler(100, 4, max_running=4, max_batch_tokens=8))
    run.submit(spec("forks", 40, 3, n=4))
    run.submit(spec("after", 4, 3))
    run.step()
    assert run.scheduler.num_running == 4
    assert sum(choice.parked for request in run.scheduler.running for choice in request.choices) == 3
    run.run()
    assert run.done == {"forks": "done", "after": "done"}


def test_a_cancelled_leader_takes_its_waiting_choices_with_it() -> None:
    run = Simulation(make_scheduler(100, 4, max_running=4, max_batch_tokens=8))
    run.submit(spec("forks", 40, 3, n=4))
    run.submit(spec("after", 4, 3))
    run.step()
    run.close("forks", "cancelled")
    assert run.scheduler.num_running == 0
    assert names(run.step().admitted) == ["after"]


def test_a_preempted_request_holds_no_slot() -> None:
    run = Simulation(make_scheduler(40, 4, max_running=1, preempt_lower_priority=True))
    run.submit(spec("low", 4, 9, priority=9))
    run.step()
    run.submit(spec("high", 4, 9, priority=0))
    plan = run.step()
    assert (names(plan.admitted), names(plan.preempted)) == (["high"], ["low"])
    assert (run.scheduler.num_running, len(run.scheduler.waiting)) == (1, 1)
    run.run()
    assert run.done == {"high": "done", "low": "done"}


@pytest.mark.parametrize("collect_lag", [0, 1])
def test_one_missing_block_preempts_one_request_even_with_a_step_in_flight(collect_lag: int) -> None:
    """vllm-ascend#16315: preempting freed nothing in the same step, so everybody was preempted in a row."""
    scheduler = make_scheduler(
        20, 4, max_running=8, max_batch_tokens=64, admission="optimistic", overcommit=0.1, collect_lag=collect_lag
    )
    run = Simulation(scheduler)
    for number in range(4):
        run.submit(spec(f"r{number}", 8, 40))
    preempted = []
    while scheduler.has_work:
        preempted.append(len(run.step().preempted))
    assert max(preempted) == 1
    assert set(run.done.values()) == {"done"}
    assert {len(tokens) for tokens in run.outputs.values()} == {48}


def test_every_stream_gets_a_token_each_step_while_long_prompts_keep_coming() -> None:
    """sglang#32549: with 3,000-token prompts arriving steadily, 250 streams got one token in 24 seconds."""
    run = Simulation(make_scheduler(400, 4, max_running=10, max_batch_tokens=32))
    for number in range(6):
        run.submit(spec(f"stream{number}", 3, 40))
    run.step()
    for number in range(30):
        run.submit(spec(f"prompt{number}", 90, 1))
        plan = run.step()
        decoded = [chunk.choice.request.request_id for chunk in plan.chunks[: plan.num_single]]
        assert [name for name in decoded if name.startswith("stream")] == [f"stream{i}" for i in range(6)]
        assert plan.num_tokens == 32  # and nothing of the step is left unused
    run.run()


@pytest.mark.parametrize("block_size", [1, 16, 100, 4096])
def test_a_last_chunk_of_one_token_is_computed_whatever_the_block_size(block_size: int) -> None:
    """sglang#36344: a prompt of 129 tokens, chunks of 128 and an alignment of 4096 were never scheduled."""
    run = Simulation(make_scheduler(1 + 130 // block_size, block_size, max_running=1, max_batch_tokens=128))
    run.submit(spec("odd", 129, 2))
    assert [[chunk.length for chunk in run.step().chunks] for _ in range(3)] == [[128], [1], [1]]
    assert run.done == {"odd": "done"}


# -- overcommitted, and out of blocks -----------------------------------------------------------------------------


class Watched(Simulation):
    """Remembers which running prompts got no tokens in a step although the token budget was not used up."""

    def step(self) -> StepPlan:
        pending = {id(c): c for r in self.scheduler.running for c in r.live if c.pending > 1 and not c.parked}
        plan = super().step()
        computed = {id(chunk.choice) for chunk in plan.chunks}
        left = self.scheduler.limits.max_batch_tokens - plan.num_tokens
        self.set_aside += sum(
            left > 0 and key not in computed and c.request not in plan.preempted for key, c in pending.items()
        )
        return plan

    set_aside: int = 0


def test_a_chunk_for_which_no_block_is_left_waits_for_a_step_and_harms_nobody() -> None:
    """sglang#30743: a chunk that continued with nothing free or evictable was admitted anyway; the server died."""
    scheduler = make_scheduler(
        11, 4, max_running=4, max_batch_tokens=8, admission="optimistic", overcommit=0.01, prefix_cache=False
    )
    run = Watched(scheduler)
    for number, (prompt, max_tokens) in enumerate([(11, 20), (11, 18), (20, 2)]):
        run.submit(spec(f"r{number}", prompt, max_tokens))
    run.run()
    assert set(run.done.values()) == {"done"}
    assert run.preemptions > 0
    assert run.set_aside > 0
    assert {name: len(tokens) for name, tokens in run.outputs.items()} == {"r0/0": 31, "r1/0": 29, "r2/0": 22}


def test_the_last_request_can_always_decode_its_next_token() -> None:
    """sglang#15626: with nothing left to evict it crashed. A request alone fits, or it was refused."""
    run = Simulation(make_scheduler(10, 4, max_running=4, max_batch_tokens=64, admission="optimistic", overcommit=0.01))
    for number in range(4):
        run.submit(spec(f"whole{number}", 4, 37))  # 40 slots each: the whole pool
    run.run()
    assert set(run.done.values()) == {"done"}
    assert {len(tokens) for tokens in run.outputs.values()} == {41}


def test_a_request_that_is_preempted_again_and_again_ends_with_the_same_tokens() -> None:
    """TensorRT-LLM#9931: pausing a request that had been paused before crashed."""
    engine = Engine(make_core(max_running=1, preempt_lower_priority=True))
    prompt = some_tokens(6)
    low = engine.submit("low", prompt, 30, priority=9)
    for number in range(7):
        for _ in range(3):
            engine.step()
        engine.submit(f"high{number}", some_tokens(5, seed=number), 2, priority=0)
        while not engine.ended(f"high{number}"):
            engine.step()
    engine.run()
    assert engine.preemptions("low") == 7
    assert engine.tokens("low") == ExactModel().continuation(prompt, 30, low)
    assert engine.admitted("low").prompt_tokens == 6


def test_a_request_is_not_preempted_twice_without_a_token_in_between() -> None:
    engine = Engine(make_core(max_running=1, preempt_lower_priority=True))
    engine.submit("low", some_tokens(60), 3, priority=9)
    engine.step()
    for number in range(5):
        engine.submit(f"high{number}", some_tokens(4), 1, priority=0)
        engine.step()
    assert engine.preemptions("low") == 1
    engine.run()


class CountingPool(BlockPool):
    """Counts look-ups."""

    lookups = 0

    def find(self, hashes: Iterable[bytes]) -> list[int]:
        self.lookups += 1
        return super().find(hashes)


def test_a_chunk_that_uses_the_whole_step_leaves_the_queue_a_bounded_look_that_changes_nothing() -> None:
    """sglang#35642: the queue was scanned and the cache touched in every step in which nobody could be admitted."""
    pool, tenants = CountingPool(40, 4), Tenants()
    scheduler = Scheduler(
        SchedulerLimits(max_running=8, max_batch_tokens=9, bypass_scan=3),
        pool,
        BlockHasher(4, key=b"test"),
        WaitingQueue(tenants, bypass_limit=1000, bypass_age_s=1000.0),
        tenants,
    )
    run = Simulation(scheduler)
    cached = tuple(range(500, 508))
    run.submit(spec("warm", cached, 1))
    run.run()
    run.submit(spec("long", 120, 40))  # 159 slots: until it is done nobody else fits
    run.step()
    for number in range(20):
        run.submit(spec(f"waits{number}", (*cached, *range(1000, 1120)), 30))
    for _ in range(10):
        before = pool.lookups
        held, order = [pool.refs(block) for block in range(41)], list(pool._idle)
        plan = run.step()
        assert plan.num_tokens == 9
        assert plan.admitted == ()
        assert pool.lookups - before == 3
        assert list(pool._idle) == order[-len(pool._idle) :]  # the chunk evicts the oldest; the look moves none
        assert all(now >= then for now, then in zip([pool.refs(b) for b in range(41)], held, strict=True))


# -- every request gets its one reply -----------------------------------------------------------------------------


async def test_every_request_of_a_burst_over_the_queue_gets_exactly_one_reply(
    client: AsyncClient, engine: FakeEngine
) -> None:
    """sglang#33858: those that a full queue threw out never heard of it."""
    no_slot = 0
    engine.gate = QueueGate(10, 10_000, Tenants(), engine.snapshot, QueueOutlook, no_slot)
    engine.admitting.clear()

    async def ask(number: int) -> Completion:
        return await client.complete("abc", max_tokens=3, request_id=f"r{number}", timeout_s=30)

    calls = [asyncio.create_task(ask(number)) for number in range(60)]
    await eventually(lambda: sum(call.done() for call in calls) == 50)
    assert len(engine.streams) == 10
    engine.admitting.set()
    replies = await asyncio.gather(*calls, return_exceptions=True)
    assert Counter(type(reply) for reply in replies) == {Completion: 10, BudgetExhaustedError: 50}
    assert (engine.gate.requests, engine.gate.tokens, engine.streams) == (0, 0, set())


def test_a_request_preempted_in_the_step_that_admits_it_is_first_said_to_be_admitted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without that event the stream never says how long the prompt is, and its place in the queue stays taken."""
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    engine = Engine(make_core(max_running=1, preempt_lower_priority=True))
    engine.submit("runs", some_tokens(3), 2, priority=0)
    engine.step()
    engine.submit("low", some_tokens(6), 4, priority=9)
    now = 2000.0  # so old by now that it goes before every priority
    engine.step()
    engine.submit("high", some_tokens(3, seed=1), 2, priority=0)
    output = engine.step()
    assert output.record is not None
    assert (output.record.admitted, output.record.preempted) == (("low", "high"), ("low",))
    engine.run()
    assert [type(event).__name__ for event in engine.events["low"]] == ["Admitted", "Preempted", *["Delta"] * 4, "Done"]
    assert engine.tokens("low") == ExactModel().continuation(some_tokens(6), 4, GREEDY)
