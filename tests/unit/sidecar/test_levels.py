"""Levels change seldom, and order pods as Kubernetes should delete them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from weir.sidecar.engine_link import EngineView
from weir.sidecar.levels import DeletionCost, Levels

INT32_MAX = 2**31 - 1


def view(running: int = 0, queued: int = 0, cached: int = 0) -> EngineView:
    return EngineView(running, queued, 1000, cached, 0.0)


def test_a_level_rises_at_its_edge_and_falls_only_well_below_it() -> None:
    levels = Levels((10.0, 20.0), slack=0.2)
    assert [levels.update(v) for v in (9.9, 10.0, 8.0, 7.9, 20.0, 16.0, 15.9, 0.0)] == [0, 1, 1, 0, 2, 2, 1, 0]


def test_a_value_that_swings_around_an_edge_stays_at_the_level_it_reached() -> None:
    levels = Levels((0.5,), slack=0.2)
    seen = [levels.update(0.5 + 0.05 * (-1) ** n) for n in range(100)]
    assert set(seen) == {1}


@pytest.mark.parametrize("edges", [(), (0.0,), (2.0, 1.0), (1.0, 1.0)])
def test_edges_must_be_positive_and_ascend(edges: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="edges"):
        Levels(edges)


@pytest.mark.parametrize(
    ("pod", "cost"),
    [
        (view(), 0),
        (view(cached=100), 1),
        (view(cached=1000), 4),
        (view(running=1), 100),
        (view(running=1, cached=1000), 104),
        (view(queued=1), 100),
        (view(running=2, queued=1), 200),
        (view(running=64), 700),
        (view(running=1000, queued=1000, cached=1000), 804),
    ],
)
def test_the_cost_of_a_pod(pod: EngineView, cost: int) -> None:
    assert DeletionCost().update(pod) == cost


def test_one_request_in_flight_costs_more_than_the_warmest_idle_cache() -> None:
    assert DeletionCost().update(view(running=1)) > DeletionCost().update(view(cached=1000))


def test_a_pod_whose_pool_is_not_there_yet_costs_nothing() -> None:
    assert DeletionCost().update(EngineView(0, 0, 0, 0, 0.0)) == 0


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 1000)), max_size=50))
def test_the_cost_is_always_an_int32_that_kubernetes_takes(pods: list[tuple[int, int]]) -> None:
    cost = DeletionCost()
    for running, cached in pods:
        assert 0 <= cost.update(view(running=running, cached=cached)) <= INT32_MAX
