"""The order in which waiting requests are tried."""

from __future__ import annotations

from weir.engine.request import Request
from weir.engine.tenants import Tenant, Tenants
from weir.engine.waiting import WaitingQueue

from .harness import spec


def queue(bypass_limit: int = 2, bypass_age_s: float = 10.0, tenants: tuple[Tenant, ...] = ()) -> WaitingQueue:
    return WaitingQueue(Tenants(tenants), bypass_limit, bypass_age_s)


def order(waiting: WaitingQueue, now: float = 0.0) -> list[str]:
    return [w.request.request_id for w in waiting.candidates(now)]


def test_first_come_first_served_within_a_priority() -> None:
    waiting = queue()
    for name, priority in [("a", 5), ("b", 0), ("c", 5), ("d", 0)]:
        waiting.push(Request(spec(name, 4, 4, priority=priority)), 0.0)
    assert order(waiting) == ["b", "d", "a", "c"]


def test_a_due_request_goes_before_every_priority_oldest_first() -> None:
    waiting = queue()
    waiting.push(Request(spec("old low", 4, 4, priority=9)), 0.0)
    waiting.push(Request(spec("older than ten", 4, 4, priority=7)), 1.0)
    waiting.push(Request(spec("high", 4, 4, priority=0)), 5.0)
    assert order(waiting, now=9.0) == ["high", "older than ten", "old low"]
    assert order(waiting, now=11.0) == ["old low", "older than ten", "high"]


def test_being_passed_too_often_makes_a_request_due() -> None:
    waiting = queue(bypass_limit=2)
    waiting.push(Request(spec("passed", 4, 4, priority=9)), 0.0)
    waiting.push(Request(spec("high", 4, 4, priority=0)), 0.0)
    passed = next(w for w in waiting.candidates(0.0) if w.request.request_id == "passed")
    assert waiting.may_be_passed(passed, 0.0)
    waiting.count_pass(passed)
    waiting.count_pass(passed)
    assert order(waiting) == ["passed", "high"]
    assert not waiting.may_be_passed(passed, 0.0)


def test_a_preempted_request_is_first_of_its_priority_and_may_not_be_passed() -> None:
    waiting = queue()
    waiting.push(Request(spec("a", 4, 4)), 0.0)
    waiting.push(Request(spec("high", 4, 4, priority=0)), 0.0)
    waiting.push_preempted(Request(spec("preempted", 4, 4)), 0.0)
    assert order(waiting) == ["high", "preempted", "a"]
    preempted = next(w for w in waiting.candidates(0.0) if w.is_preempted)
    assert not waiting.may_be_passed(preempted, 0.0)


def test_a_preempted_request_goes_before_the_due_ones_of_its_own_or_a_lower_priority() -> None:
    waiting = queue()
    for name, priority in [("due high", 3), ("due", 5), ("due low", 9)]:
        waiting.push(Request(spec(name, 4, 4, priority=priority)), 0.0)
    waiting.push_preempted(Request(spec("preempted", 4, 4)), 20.0)
    waiting.push(Request(spec("new and high", 4, 4, priority=0)), 20.0)
    assert order(waiting, now=20.0) == ["due high", "preempted", "due", "due low", "new and high"]


def test_a_preempted_request_of_low_priority_is_due_in_its_turn() -> None:
    waiting = queue()
    waiting.push_preempted(Request(spec("preempted", 4, 4, priority=9)), 0.0)
    waiting.push(Request(spec("due", 4, 4)), 1.0)
    assert order(waiting, now=20.0) == ["preempted", "due"]


def test_tokens_count_prompt_and_output_of_all_choices_and_return_to_zero() -> None:
    waiting = queue()
    waiting.push(Request(spec("a", 10, 5, n=3)), 0.0)
    waiting.push(Request(spec("b", 1, 1)), 0.0)
    assert waiting.tokens == 10 + 15 + 2
    assert waiting.remove("a") is not None
    assert waiting.remove("a") is None
    assert waiting.remove("b") is not None
    assert (waiting.tokens, len(waiting)) == (0, 0)


def test_a_tenant_that_was_idle_gets_no_credit_for_it() -> None:
    waiting = queue(tenants=(Tenant("a"), Tenant("b")))
    for number in range(4):
        waiting.push(Request(spec(f"a{number}", 5, 5, tenant="a")), 0.0)
    for name in ("a0", "a1", "a2"):
        waiting.admit(next(w for w in waiting.candidates(0.0) if w.request.request_id == name))
    for number in range(3):
        waiting.push(Request(spec(f"b{number}", 5, 5, tenant="b")), 0.0)
    # The clock stands at a2's start (20); b starts there, not at 0, so a3 (30) is not starved by b's past silence.
    assert order(waiting) == ["b0", "a3", "b1", "b2"]


def test_unknown_tenants_share_one_place() -> None:
    tenants = Tenants((Tenant("gold", weight=2.0),))
    assert tenants.get("someone") is tenants.get("someone else")
    assert tenants.names() == ("default", "gold")
