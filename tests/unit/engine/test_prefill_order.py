"""Whose prompt is computed next: priority, tenant weight, least work left; and nobody waits for ever."""

from __future__ import annotations

from weir.engine.plan import StepPlan
from weir.engine.prefill_order import OLDEST_EVERY
from weir.engine.tenants import Tenant

from .harness import Simulation, make_scheduler, spec


def computed(plan: StepPlan) -> dict[str, int]:
    """Prompt tokens of each request in this step."""
    return {chunk.choice.request.request_id: chunk.length for chunk in plan.chunks if chunk.length > 1}


def simulation(tenants: tuple[Tenant, ...] = ()) -> Simulation:
    """40 tokens a step, and room for everybody."""
    return Simulation(make_scheduler(4000, 4, max_running=8, max_batch_tokens=40, tenants=tenants))


def test_an_urgent_prompt_is_computed_before_the_long_ones_that_were_admitted_first() -> None:
    run = simulation()
    for name in ("long", "longer"):
        run.submit(spec(name, 400, 2))
    run.step()
    run.submit(spec("urgent", 30, 2, priority=0))
    assert computed(run.step()) == {"urgent": 30, "long": 10}


def test_within_a_priority_the_shortest_comes_first() -> None:
    run = simulation()
    run.submit(spec("long", 400, 2))
    run.step()
    run.submit(spec("short", 25, 2))
    run.submit(spec("shorter", 10, 2))
    assert computed(run.step()) == {"shorter": 10, "short": 25, "long": 5}


def test_tenants_share_the_prompt_tokens_by_weight() -> None:
    run = simulation((Tenant("gold", weight=3.0), Tenant("batch")))
    run.submit(spec("b", 2000, 2, tenant="batch"))
    run.submit(spec("g", 2000, 2, tenant="gold"))
    share = {"b": 0, "g": 0}
    for _ in range(5 * OLDEST_EVERY):
        for name, tokens in computed(run.step()).items():
            share[name] += tokens
    # One step in eight is the oldest's (b's), and counts as what it was served; the rest follows the weights.
    assert share["b"] + share["g"] == 40 * 40
    assert abs(share["g"] - 1200) <= 40  # to a step


def test_a_tenant_that_was_away_gets_no_credit_for_it() -> None:
    run = simulation((Tenant("gold"), Tenant("batch")))
    run.submit(spec("b1", 800, 2, tenant="batch"))
    run.submit(spec("b2", 800, 2, tenant="batch"))
    for _ in range(10):
        run.step()
    run.submit(spec("g1", 390, 2, tenant="gold"))
    run.submit(spec("g2", 390, 2, tenant="gold"))
    gold = 0
    for _ in range(OLDEST_EVERY):
        gold += sum(tokens for name, tokens in computed(run.step()).items() if name.startswith("g"))
    assert 40 * OLDEST_EVERY * 0.35 <= gold <= 40 * OLDEST_EVERY * 0.65


def test_a_prompt_that_urgent_ones_keep_passing_is_still_computed_to_its_end() -> None:
    run = simulation()
    run.submit(spec("patient", 200, 1, priority=9))
    for number in range(100):
        if "patient" in run.done:
            break
        run.submit(spec(f"urgent{number}", 41, 1, priority=0))  # more than a step has room for, in every step
        run.step()
    assert run.done["patient"] == "done"
    assert run.now <= OLDEST_EVERY * 6  # 200 tokens at 40 a turn


def test_the_promise_holds_though_a_later_prompt_puts_off_an_earlier_ones_end() -> None:
    run = Simulation(make_scheduler(26, 4, max_running=4, max_batch_tokens=12))
    run.submit(spec("first", 40, 5))
    run.step()
    run.submit(spec("grows", 4, 60))
    run.submit(spec("third", 40, 5, priority=0))
    run.run()  # the harness checks after every step that no more blocks are used than were promised
    assert run.done == dict.fromkeys(("first", "grows", "third"), "done")
    assert run.preemptions == 0
