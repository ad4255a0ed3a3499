"""When a field may be written, and when a call may be tried again."""

from __future__ import annotations

from weir.sidecar.backoff import Backoff
from weir.sidecar.fields import ManagedField


def make(min_interval_s: float = 60.0) -> ManagedField:
    return ManagedField("f", min_interval_s, lambda value: None)


def test_nothing_is_due_before_a_value_is_decided() -> None:
    assert make().due(0.0) is None


def test_a_value_is_due_once() -> None:
    field = make()
    field.want("1")
    assert field.due(0.0) == "1"
    field.wrote("1", 0.0)
    assert field.due(1000.0) is None


def test_a_change_waits_for_the_interval_and_only_the_last_value_is_written() -> None:
    field = make(60.0)
    field.want("1")
    field.wrote("1", 0.0)
    field.want("2")
    field.want("3")
    assert field.due(59.9) is None
    assert field.due(60.0) == "3"


def test_a_value_that_came_back_is_not_written_again() -> None:
    field = make()
    field.want("1")
    field.wrote("1", 0.0)
    field.want("2")
    field.want("1")
    assert field.due(100.0) is None


def test_a_field_on_hold_is_written_afterwards_even_if_its_value_is_the_old_one() -> None:
    field = make()
    field.want("1")
    field.wrote("1", 0.0)
    field.hold(10.0, 600.0)
    assert field.due(609.9) is None
    assert field.due(610.0) == "1"


def test_waits_double_up_to_a_minute() -> None:
    backoff = Backoff(draw=lambda: 1.0)
    assert [backoff.failed(0.0) for _ in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]


def test_jitter_takes_up_to_half_of_a_wait() -> None:
    assert Backoff(draw=lambda: 0.0).failed(0.0) == 0.5


def test_what_the_server_asks_for_is_the_least() -> None:
    backoff = Backoff(draw=lambda: 1.0)
    backoff.failed(100.0, at_least_s=17.0)
    assert not backoff.ready(116.9)
    assert backoff.ready(117.0)


def test_a_success_forgets_the_faults() -> None:
    backoff = Backoff(draw=lambda: 1.0)
    backoff.failed(0.0)
    backoff.failed(0.0)
    backoff.succeeded()
    assert backoff.ready(0.0)
    assert backoff.failed(0.0) == 1
