"""What is foretold against what then happens: the same scheduler, stepped on a clock of one second a step."""

from __future__ import annotations

import random

import pytest
from weir.engine import forecast
from weir.engine.ends import ExpectedEnds, earliest
from weir.engine.forecast import least_wait_s, starts
from weir.engine.outlook import _SURE as SURE
from weir.engine.request import GenerateRequest, Request, SamplingParams
from weir.engine.scheduler import Scheduler
from weir.engine.step_cost import StepCost
from weir.engine.tenants import Tenant

from .harness import Simulation, make_scheduler, spec


def one_second_a_step() -> StepCost:
    cost = StepCost()
    for rows in (1, 4, 8):
        for prefill in (0, 16):
            cost.observe(rows, 50 * rows, prefill, 1.0)
    return cost


def to_the_end(params: SamplingParams, made: int) -> int:
    return params.max_tokens - made


def foretold(scheduler: Scheduler, now: float, newcomer: GenerateRequest | None = None) -> dict[str, float]:
    asks = None if newcomer is None else Request(newcomer)
    return {
        start.request.request_id: start.at for start in starts(scheduler, one_second_a_step(), now, to_the_end, asks)
    }


def test_a_newcomer_behind_four_that_fill_the_pool_starts_when_they_end() -> None:
    # Four of 40 tokens each fill 40 blocks of 4; they make their 31 tokens in steps 1 to 31.
    run = Simulation(make_scheduler(40, 4, max_batch_tokens=64))
    for name in "abcd":
        run.submit(spec(name, 10, 31))
    run.submit(spec("waiter", 10, 30))
    run.step()
    assert foretold(run.scheduler, run.now, spec("new", 10, 30)) == {"waiter": 31.0, "new": 31.0}
    for _ in range(20):
        run.step()
    assert foretold(run.scheduler, run.now, spec("new", 10, 30)) == {"waiter": 31.0, "new": 31.0}
    run.run()
    assert run.admitted_at["waiter"] == 31.0


def test_the_foretold_wait_shrinks_with_the_true_one() -> None:
    run = Simulation(make_scheduler(40, 4, max_batch_tokens=64))
    for name in "abcd":
        run.submit(spec(name, 10, 31))
    told = []
    for _ in range(25):
        run.step()
        told.append(foretold(run.scheduler, run.now, spec("new", 10, 30))["new"] - run.now)
    assert told == pytest.approx([31.0 - step for step in range(1, 26)])


def random_request(dice: random.Random, name: str) -> GenerateRequest:
    n = dice.choice([1, 1, 1, 2])
    return spec(
        name,
        dice.randint(1, 30),
        dice.randint(1, 40 // n),
        n=n,
        priority=dice.choice([0, 5, 5, 5, 9]),
        tenant=dice.choice(["", "half"]),
    )


def random_run(dice: random.Random, admission: str, early: bool = False) -> Simulation:
    """Twelve requests, some of which have started; with `early`, half of them end before their max_tokens."""
    run = Simulation(
        make_scheduler(
            40,
            4,
            max_batch_tokens=dice.choice([32, 128]),
            admission=admission,
            bypass_age_s=30.0,
            tenants=(Tenant("half", kv_share=0.5),),
        )
    )
    for number in range(12):
        run.submit(random_request(dice, f"r{number}"))
        if early and dice.random() < 0.5:
            run.ends[f"r{number}"] = dice.randint(1, 20)
    for _ in range(dice.randint(1, 30)):
        run.step()
    return run


@pytest.mark.parametrize("admission", ["guaranteed", "reserve"])
def test_random_queues_start_when_it_was_foretold(admission: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With every end known and nobody else arriving, 19 of 20 starts are right to a step."""
    monkeypatch.setattr(forecast, "_MOST_LOOKS", 10_000)
    right = wrong = 0
    for seed in range(15):
        run = random_run(random.Random(seed), admission)
        waiting = {request.request_id for request in run.scheduler.waiting}
        told = foretold(run.scheduler, run.now)
        run.run()
        assert set(told) == waiting
        for name, at in told.items():
            true = run.admitted_at[name]
            if abs(at - true) <= 1.0:
                right += 1
            else:
                wrong += 1
    assert right > 40
    assert wrong <= right / 19


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("admission", ["guaranteed", "reserve"])
def test_no_newcomer_is_served_in_less_than_its_sure_wait(admission: str, early: bool) -> None:
    waited = 0
    for seed in range(25):
        dice = random.Random(seed)
        run = random_run(dice, admission, early)
        newcomer, now = random_request(dice, "new"), run.now
        sure = SURE * least_wait_s(
            run.scheduler, one_second_a_step(), now, Request(newcomer), earliest if early else to_the_end
        )
        run.submit(newcomer)
        run.run()
        assert sure <= run.admitted_at["new"] - now
        waited += sure > 0
    assert waited >= 4


def test_a_deadline_that_passes_while_others_wait_frees_its_place() -> None:
    run = Simulation(make_scheduler(40, 4, max_batch_tokens=64))
    run.submit(spec("whole", 100, 61))
    run.submit(spec("late", 100, 61, deadline=10.0))
    run.step()
    # The pool is taken for 2 + 60 steps; the second one never starts, so the newcomer is the next.
    assert foretold(run.scheduler, run.now, spec("new", 100, 61)) == {"new": 62.0}


def test_a_running_request_is_gone_at_its_deadline() -> None:
    run = Simulation(make_scheduler(40, 4, max_batch_tokens=128))
    run.submit(spec("whole", 100, 61, deadline=20.0))
    run.step()
    assert foretold(run.scheduler, run.now, spec("new", 100, 61))["new"] == pytest.approx(20.0, abs=1.0)


def test_an_urgent_newcomer_does_not_wait_for_the_queue_behind_it() -> None:
    run = Simulation(make_scheduler(40, 4, max_batch_tokens=128, max_running=2))
    for number in range(6):
        run.submit(spec(f"batch{number}", 40, 20))
    run.step()
    told = foretold(run.scheduler, run.now, spec("gold", 40, 20, priority=0))
    assert told["gold"] == min(told.values())
    assert foretold(run.scheduler, run.now, spec("last", 40, 20))["last"] == max(told.values())


def test_a_flood_of_one_tenant_is_not_held_against_the_deadline_of_another() -> None:
    run = Simulation(make_scheduler(400, 4, max_running=2, tenants=(Tenant("gold", weight=100.0), Tenant("batch"))))
    for number in range(30):
        run.submit(spec(f"batch{number}", 40, 20, tenant="batch"))
    run.step()
    gold = Request(spec("gold", 2, 20, tenant="gold", deadline=run.now + 30.0))
    batch = Request(spec("batch", 2, 20, tenant="batch", deadline=run.now + 30.0))
    cost = one_second_a_step()
    # Two run to step 21 or so; gold is the next, and batch has 28 before it.
    assert least_wait_s(run.scheduler, cost, run.now, gold, to_the_end) < 25.0
    assert least_wait_s(run.scheduler, cost, run.now, batch, to_the_end) > 30.0


def test_what_may_stop_is_expected_to_stop_as_others_did_and_may_at_once() -> None:
    may_stop = SamplingParams(max_tokens=100)
    to_length = SamplingParams(max_tokens=100, ignore_eos=True)
    ends = ExpectedEnds()
    assert (ends.remaining(may_stop, 20), earliest(may_stop, 20)) == (80, 1)
    ends.observe(may_stop, 25)
    assert (ends.remaining(may_stop, 20), ends.remaining(may_stop, 60)) == (20, 10)
    assert (ends.remaining(to_length, 20), earliest(to_length, 20)) == (80, 80)
    ends.observe(to_length, 100)  # says nothing about those that stop
    assert ends.remaining(may_stop, 20) == 20
    assert earliest(SamplingParams(max_tokens=100, min_tokens=30), 20) == 11
    assert earliest(SamplingParams(max_tokens=100, ignore_eos=True, stop=("x",)), 20) == 1


def test_the_cost_of_steps_is_found_from_steps_that_differ() -> None:
    cost, dice = StepCost(), random.Random(1)
    assert cost.seconds(1, 1, 1, 0) > 0  # a guess before the first
    for _ in range(500):
        rows, prefill = dice.randint(0, 64), dice.choice([0, 0, 100, 400])
        context = rows * dice.randint(10, 1000)
        cost.observe(rows, context, prefill, 0.010 + 0.0005 * rows + 2e-7 * context + 0.0001 * prefill)
    # Ten steps of four rows, whose context grows by four tokens a step: 40,000 + 4 * 45 in all.
    assert cost.seconds(10, 4, 4000, 0) == pytest.approx(10 * 0.012 + 2e-7 * 40_180, rel=0.02)
    assert cost.seconds(2, 0, 0, 600) == pytest.approx(2 * 0.010 + 0.06, rel=0.02)
