"""When a field may be written, and when a call may be tried again."""

from __future__ import annotations

import pytest
from weir.sidecar.backoff import Backoff
from weir.sidecar.fields import NEVER, ManagedField


def make(interval_s: float = 60.0, first_at: float = 0.0) -> ManagedField:
    return ManagedField("f", interval_s, first_at, lambda value: None, draw=lambda: 1.0)


def test_nothing_is_due_before_a_value_is_decided() -> None:
    field = make()
    assert field.due(0.0) is None
    assert field.due_at() == NEVER


def test_a_value_is_due_once() -> None:
    field = make()
    assert field.want("1", 0.0) is True
    assert field.due(0.0) == "1"
    field.wrote("1", 0.0)
    assert field.due(1000.0) is None
    assert field.want("1", 1000.0) is False


def test_a_pod_waits_for_its_own_moment_to_write_first() -> None:
    field = make(first_at=17.0)
    field.want("1", 0.0)
    assert (field.due(16.9), field.due(17.0)) == (None, "1")


def test_a_change_waits_for_the_next_slot_and_only_the_last_value_is_written() -> None:
    field = make(60.0, first_at=17.0)
    field.want("1", 17.0)
    field.wrote("1", 17.0)
    field.want("2", 20.0)
    field.want("3", 70.0)
    assert field.due_at() == 77.0
    assert (field.due(76.9), field.due(77.0)) == (None, "3")


def test_after_a_long_rest_a_change_waits_for_a_slot_too_so_that_pods_that_change_together_write_apart() -> None:
    fields = [make(60.0, first_at=float(second)) for second in range(60)]
    for field in fields:
        field.want("1", 0.0)
        field.wrote("1", 60.0)
        field.want("2", 100_000.5)
    assert sorted(field.due_at() for field in fields) == [100_001.0 + second for second in range(60)]


@pytest.mark.parametrize("way", ["wanted", "seen"])
def test_a_value_that_came_back_is_not_written_again(way: str) -> None:
    field = make()
    field.want("1", 0.0)
    field.wrote("1", 0.0)
    if way == "wanted":
        field.want("2", 1.0)
        field.want("1", 2.0)
    else:
        field.saw("2", 1.0)
        field.saw("1", 2.0)
    assert field.due(1e6) is None


def test_a_value_that_is_there_already_is_not_written() -> None:
    field = make()
    field.saw("1", 0.0)
    assert field.want("1", 1.0) is False
    assert field.due(1e6) is None


def test_a_value_that_somebody_changed_or_removed_is_written_again() -> None:
    field = make()
    field.want("1", 0.0)
    field.wrote("1", 0.0)
    assert field.saw("", 30.0) is True
    assert (field.due(59.9), field.due(60.0)) == (None, "1")


def test_a_change_that_is_seen_before_the_answer_to_an_earlier_write_is_not_taken_for_that_write() -> None:
    field = make()
    field.want("1", 0.0)
    field.begin()
    field.saw("1", 0.1)
    field.saw("", 0.2)
    field.wrote("1", 0.3)
    assert field.due(60.0) == "1"


def test_a_state_from_before_a_write_does_no_harm_when_the_write_is_seen_after_it() -> None:
    field = make()
    field.want("1", 0.0)
    field.begin()
    field.saw("", 0.1)
    field.wrote("1", 0.2)
    field.saw("1", 0.3)
    assert field.due(1e6) is None


def test_a_field_that_was_refused_rests_and_is_then_written_even_if_its_value_is_the_old_one() -> None:
    field = make()
    field.want("1", 0.0)
    field.wrote("1", 0.0)
    field.want("2", 60.0)
    assert field.refused(60.0, 600.0) == 600.0
    field.want("1", 70.0)
    assert (field.due(659.9), field.due(660.0)) == (None, "1")


def test_a_field_that_goes_on_being_refused_is_tried_once_a_minute() -> None:
    field = make()
    field.want("1", 0.0)
    assert [field.refused(0.0) for _ in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]


def test_a_write_of_unknown_fate_is_done_again_even_if_its_value_is_wanted_no_more() -> None:
    field = make()
    field.want("1", 0.0)
    field.wrote("1", 0.0)
    field.want("2", 60.0)
    field.doubt(120.0)
    field.want("1", 130.0)
    assert field.due(180.0) == "1"


def test_the_last_write_waits_for_nothing() -> None:
    field = make(first_at=1e6)
    field.want("open", 0.0)
    field.refused(0.0, 600.0)
    field.hurry()
    assert field.due(0.0) == "open"


def test_a_last_value_that_is_decided_while_another_is_being_written_is_written_after_it() -> None:
    field = make()
    field.want("open", 0.0)
    field.wrote("open", 0.0)
    field.want("closed", 1.0)
    field.begin()
    field.want("open", 60.0)
    field.hurry()
    assert field.due(60.0) is None
    field.wrote("closed", 60.1)
    assert field.due(60.1) == "open"


def test_hurry_makes_nothing_due_that_is_not() -> None:
    field = make()
    field.want("open", 0.0)
    field.wrote("open", 0.0)
    field.hurry()
    assert field.due(1e6) is None


def test_an_interval_of_zero_is_no_interval() -> None:
    field = make(0.0)
    field.want("1", 0.0)
    field.wrote("1", 0.0)
    field.want("2", 0.1)
    assert field.due(0.1) == "2"


def test_waits_double_up_to_a_minute() -> None:
    backoff = Backoff(draw=lambda: 1.0)
    assert [backoff.failed(0.0) for _ in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]


def test_waits_double_up_to_what_is_asked_for() -> None:
    backoff = Backoff(draw=lambda: 1.0)
    assert [backoff.failed(0.0, most_s=8.0) for _ in range(6)] == [1, 2, 4, 8, 8, 8]


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
