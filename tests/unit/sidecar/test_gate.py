"""The gate closes for a reason, never for long, and never because something is unknown."""

from __future__ import annotations

from weir.sidecar.engine_link import EngineView
from weir.sidecar.gate import KvReadyGate


def waiting(seconds: float) -> EngineView:
    return EngineView(1, 1, 1000, 0, seconds)


def test_three_long_waits_in_a_row_close_it_and_a_short_one_opens_it() -> None:
    gate = KvReadyGate(max_wait_s=10, max_closed_s=100)
    looks = [11, 11, 9, 11, 11, 11, 6, 5]
    assert [gate.update(waiting(s), now) for now, s in enumerate(looks)] == [
        True, True, True, True, True, False, False, True,
    ]  # fmt: skip


def test_an_engine_that_does_not_answer_opens_it() -> None:
    gate = KvReadyGate(max_wait_s=10, max_closed_s=100)
    assert [gate.update(waiting(99), now) for now in range(3)][-1] is False
    assert gate.update(None, 3) is True


def test_it_opens_when_its_time_is_up_and_stays_open_as_long() -> None:
    gate = KvReadyGate(max_wait_s=10, max_closed_s=100)
    closed = [now for now in range(0, 500) if not gate.update(waiting(99), now)]
    # Closed by the third look, open at 102 for at least 100 s, closed again by the next look.
    assert closed[0] == 2
    assert 101 in closed
    assert not set(range(102, 202)) & set(closed)
    assert 202 in closed


def test_it_says_why_it_last_changed() -> None:
    gate = KvReadyGate(max_wait_s=10, max_closed_s=100)
    reasons = []
    for now, view in enumerate([waiting(1), *[waiting(45)] * 3, waiting(3), waiting(2), None]):
        gate.update(view, now)
        reasons.append(gate.why)
    assert reasons == [
        *["nothing speaks against it"] * 3,
        "new work would wait 45.0 s, more than 10.0 s",
        *["new work would wait 3.0 s"] * 3,
    ]
    for now in range(10, 120):
        gate.update(waiting(99), now)
    assert gate.why == "it was closed for 100 s, the longest allowed"
