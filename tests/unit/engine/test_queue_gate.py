"""The bound on waiting work: counted on arrival, given back on every path."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from weir.engine.errors import QueueFullError
from weir.engine.queue_gate import QueueGate
from weir.engine.records import BudgetSnapshot, QueueExit, QueueOutlook
from weir.engine.tenants import Tenant, Tenants

BUDGET = BudgetSnapshot(1000, 300, 600, 100, 900, 3, 2, 500, 8.0, 7)
IDLE = BudgetSnapshot(1000, 1000, 0, 0, 0, 0, 0, 0, 0.0, 0)


def gate(
    max_requests: int = 3,
    max_tokens: int = 1000,
    tenants: tuple[Tenant, ...] = (),
    *,
    budget: BudgetSnapshot = BUDGET,
    outlook: QueueOutlook | None = None,
    max_running: int = 3,
) -> QueueGate:
    """By default beside an engine whose three slots are taken."""
    said = outlook or QueueOutlook()
    return QueueGate(max_requests, max_tokens, Tenants(tenants), lambda: budget, lambda: said, max_running)


def exits(*seconds_tenant_tokens: tuple[float, str, int]) -> QueueOutlook:
    now = time.monotonic()
    return QueueOutlook(now + 1000.0, tuple(QueueExit(now + s, tenant, t) for s, tenant, t in seconds_tenant_tokens))


def test_the_bound_on_requests() -> None:
    full = gate(max_requests=2)
    full.reserve(1, "")
    full.reserve(1, "")
    with pytest.raises(QueueFullError) as refused:
        full.reserve(7, "")
    assert (refused.value.needed_tokens, refused.value.queued_requests, refused.value.queued_tokens) == (7, 2, 2)
    assert refused.value.free_tokens == 400  # free and cached


def test_the_bound_on_tokens_and_the_time_at_which_enough_of_them_have_left() -> None:
    full = gate(max_tokens=1000, outlook=exits((4.0, "", 100), (9.0, "", 200), (30.0, "", 500)))
    full.reserve(800, "")
    with pytest.raises(QueueFullError) as refused:
        full.reserve(300, "")  # 100 too many: gone with the first exit
    assert refused.value.retry_after_s == pytest.approx(4.0, abs=0.5)
    with pytest.raises(QueueFullError) as refused:
        full.reserve(301, "")  # 101 too many: the second exit too
    assert refused.value.retry_after_s == pytest.approx(9.0, abs=0.5)
    full.reserve(200, "")


def test_the_bound_on_requests_waits_for_the_first_exit() -> None:
    full = gate(max_requests=2, outlook=exits((7.0, "", 1), (9.0, "", 1)))
    full.reserve(1, "")
    full.reserve(1, "")
    with pytest.raises(QueueFullError) as refused:
        full.reserve(1, "")
    assert refused.value.retry_after_s == pytest.approx(7.0, abs=0.5)


def test_a_tenants_own_bound_waits_for_its_own_exits() -> None:
    half = gate(
        max_requests=4, tenants=(Tenant("half", queue_share=0.5),), outlook=exits((3.0, "", 10), (8.0, "half", 10))
    )
    half.reserve(10, "half")
    half.reserve(10, "half")
    with pytest.raises(QueueFullError) as refused:
        half.reserve(10, "half")
    assert refused.value.retry_after_s == pytest.approx(8.0, abs=0.5)


def test_beyond_the_known_exits_the_queue_moves_at_their_pace() -> None:
    full = gate(max_tokens=1000, outlook=exits((10.0, "", 100)))
    full.reserve(1000, "")
    with pytest.raises(QueueFullError) as refused:
        full.reserve(250, "")
    assert refused.value.retry_after_s == pytest.approx(25.0, abs=1.0)


def test_a_burst_on_an_idle_server_gets_the_slots_and_the_places() -> None:
    burst = gate(max_requests=6, max_running=8, budget=IDLE)
    for _ in range(14):
        burst.reserve(10, "")
    with pytest.raises(QueueFullError) as refused:
        burst.reserve(10, "")
    assert (refused.value.queued_requests, burst.requests) == (6, 14)


def test_a_burst_gets_no_slot_that_the_kv_pool_cannot_fill() -> None:
    burst = gate(max_requests=6, max_tokens=9000, max_running=8, budget=IDLE)
    for _ in range(3 + 6):
        burst.reserve(300, "")  # 1,000 tokens hold three
    with pytest.raises(QueueFullError):
        burst.reserve(300, "")


def test_behind_a_waiting_request_nobody_counts_as_started() -> None:
    burst = gate(max_requests=2, max_tokens=9000, max_running=8, budget=IDLE)
    burst.reserve(2000, "")  # larger than the pool: it waits
    burst.reserve(1, "")
    with pytest.raises(QueueFullError):
        burst.reserve(1, "")


def test_an_overload_is_two_log_lines_however_often_the_queue_fills_up(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="weir.engine.queue_gate")
    full = gate(max_requests=4, tenants=(Tenant("half", queue_share=0.5),))
    tickets = [full.reserve(10, "half"), full.reserve(10, "half")]
    with pytest.raises(QueueFullError):
        full.reserve(10, "half")  # the tenant's own bound: no overload
    tickets += [full.reserve(10, ""), full.reserve(10, "")]
    for _ in range(3):
        with pytest.raises(QueueFullError):
            full.reserve(10, "")
        tickets.pop().release()
        tickets.append(full.reserve(10, ""))
    assert [record.message for record in caplog.records] == ["queue full, refusing"]
    while tickets:
        tickets.pop().release()
    begun, ended = caplog.records
    assert (begun.levelname, begun.requests, begun.tokens) == ("WARNING", 4, 40)  # type: ignore[attr-defined]
    assert (ended.message, ended.refused) == ("queue has room, accepting again", 3)  # type: ignore[attr-defined]


def test_requests_that_are_too_large_for_a_nearly_empty_queue_are_no_overload(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="weir.engine.queue_gate")
    roomy = gate(max_tokens=1000)
    roomy.reserve(200, "")
    for _ in range(3):
        with pytest.raises(QueueFullError):
            roomy.reserve(900, "")
        roomy.reserve(1, "").release()
    assert caplog.records == []


def test_an_empty_queue_takes_one_request_of_any_size() -> None:
    assert gate(max_tokens=10).reserve(5000, "").tokens == 5000


def test_a_released_ticket_gives_its_room_back_once() -> None:
    gate_ = gate()
    ticket = gate_.reserve(100, "")
    ticket.resize(40)
    assert gate_.tokens == 40
    ticket.release()
    ticket.release()
    ticket.resize(99)
    assert (gate_.requests, gate_.tokens) == (0, 0)


def test_a_tenant_fills_its_share_and_no_more() -> None:
    shared = gate(max_requests=4, tenants=(Tenant("half", queue_share=0.5),))
    shared.reserve(1, "half")
    shared.reserve(1, "half")
    with pytest.raises(QueueFullError, match="tenant half"):
        shared.reserve(1, "half")
    shared.reserve(1, "anyone")


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 300), st.sampled_from(["", "half", "x"])), max_size=40))
def test_the_counts_return_to_zero_whatever_happens(actions: list[tuple[int, int, str]]) -> None:
    counted = gate(max_requests=5, max_tokens=900, tenants=(Tenant("half", queue_share=0.5),))
    tickets = []
    for action, tokens, tenant in actions:
        if action < 2:
            try:
                tickets.append(counted.reserve(tokens, tenant))
            except QueueFullError:
                assert counted.requests > 0
        elif tickets and action == 2:
            tickets[tokens % len(tickets)].resize(tokens)
        elif tickets:
            tickets[tokens % len(tickets)].release()
    for ticket in tickets:
        ticket.release()
    assert (counted.requests, counted.tokens) == (0, 0)
