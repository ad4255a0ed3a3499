"""The end of a pod's life, second by second."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from weir.sidecar.drain import DrainCoordinator, DrainReport, Stage
from weir.sidecar.engine_link import EngineLink, EngineView


class Answers(EngineLink):
    """An engine whose answers to Drain are given; None: no answer."""

    def __init__(self, left: Sequence[int | None]) -> None:
        self.left = list(left)
        self.asked = 0

    def drain(self) -> int | None:
        self.asked += 1
        return self.left.pop(0) if self.left else None


def view(in_flight: int) -> EngineView:
    return EngineView(in_flight, 0, 1000, 0, 0.0)


def live(coordinator: DrainCoordinator, seconds: int, in_flight: int = 0) -> DrainReport:
    coordinator.begin(100.0)
    for second in range(seconds):
        coordinator.tick(100.0 + second, view(in_flight))
    assert coordinator.report is not None
    return coordinator.report


def test_nothing_happens_before_the_pod_ends() -> None:
    link = Answers([])
    coordinator = DrainCoordinator(link, 10, 120)
    coordinator.tick(1e6, view(3))
    assert (coordinator.stage, link.asked) == (Stage.SERVING, 0)


def test_the_engine_serves_on_until_its_endpoints_are_gone() -> None:
    link = Answers([5])
    coordinator = DrainCoordinator(link, 10, 120)
    coordinator.begin(0.0)
    coordinator.tick(9.9, view(5))
    assert (coordinator.stage, link.asked) == (Stage.LEAVING, 0)
    coordinator.tick(10.0, view(5))
    assert (coordinator.stage, link.asked) == (Stage.DRAINING, 1)


def test_the_report_comes_when_nothing_is_in_flight_any_more() -> None:
    report = live(DrainCoordinator(Answers([5, 3, 1, 0]), 10, 120), 20, in_flight=5)
    assert report == DrainReport(13.0, at_start=5, left=0, engine_ended=False)
    assert str(report) == "done after 13.0 s: 5 requests in flight at first, 0 at last"


def test_an_idle_engine_is_done_at_once() -> None:
    assert live(DrainCoordinator(Answers([0]), 10, 120), 11).seconds == 10.0


def test_requests_that_take_too_long_are_reported_as_left() -> None:
    report = live(DrainCoordinator(Answers([2] * 99), 10, 30), 60, in_flight=2)
    assert report == DrainReport(40.0, at_start=2, left=2, engine_ended=False)
    assert str(report).startswith("time is up after 40.0 s")


def test_an_engine_that_ended_is_noticed_by_two_missed_calls_and_not_by_one() -> None:
    report = live(DrainCoordinator(Answers([4, None, 3, None, None]), 10, 120), 30, in_flight=4)
    assert report == DrainReport(14.0, at_start=4, left=3, engine_ended=True)


def test_beginning_twice_does_not_begin_again() -> None:
    coordinator = DrainCoordinator(Answers([0]), 10, 120)
    coordinator.begin(0.0)
    coordinator.begin(9.0)
    coordinator.tick(10.0, view(0))
    assert coordinator.report is not None


@pytest.mark.parametrize("began", [True, False])
def test_the_sidecars_own_end_reports_a_drain_that_had_begun(began: bool) -> None:
    coordinator = DrainCoordinator(Answers([]), 10, 120)
    if began:
        coordinator.begin(0.0)
    coordinator.conclude(7.0)
    assert coordinator.report == (DrainReport(7.0, 0, 0, engine_ended=True) if began else None)
