"""What the writer does about each fault: bounded writes, no crash, one log line for each change of state."""

from __future__ import annotations

import logging

import pytest
from weir.sidecar.clock import SystemClock
from weir.sidecar.fields import ManagedField
from weir.sidecar.kube import PodApi
from weir.sidecar.metrics import SidecarMetrics
from weir.sidecar.state_log import StateLog
from weir.sidecar.writer import FieldWriter

from tests.unit.sidecar.api_server import ApiServer, Fault
from tests.unit.sidecar.conftest import value

COST = "controller.kubernetes.io/pod-deletion-cost"
GATE = "weir.inference/kv-ready"


class Bench:
    """A writer with two fields over a real API, and jitter that always waits longest."""

    def __init__(self, api: PodApi, metrics: SidecarMetrics) -> None:
        def longest() -> float:
            return 1.0

        self.cost = ManagedField(
            "deletion_cost", 60.0, 0.0, lambda v: api.apply_annotation(COST, v, "weir-cost"), longest
        )
        self.gate = ManagedField(
            "kv_ready", 60.0, 0.0, lambda v: api.apply_condition(GATE, v == "open", "Test", "weir-gate"), longest
        )
        log = StateLog(logging.getLogger("test"))
        self.writer = FieldWriter((self.cost, self.gate), api.forget_token, metrics, log, SystemClock(), longest)


@pytest.fixture
def bench(pod_api: PodApi, metrics: SidecarMetrics) -> Bench:
    return Bench(pod_api, metrics)


def test_both_fields_are_written_and_counted(bench: Bench, api_server: ApiServer, metrics: SidecarMetrics) -> None:
    bench.cost.want("104", 0.0)
    bench.gate.want("open", 0.0)
    bench.writer.turn(0.0)
    assert api_server.annotations == {COST: "104"}
    assert api_server.conditions[GATE]["status"] == "True"
    for field in ("deletion_cost", "kv_ready"):
        assert value(metrics, "weir_sidecar_writes_total", field=field) == 1


def test_a_busy_hour_of_changes_is_at_most_a_write_a_minute(bench: Bench, api_server: ApiServer) -> None:
    for second in range(3600):
        bench.cost.want(str(second % 7), float(second))
        bench.writer.turn(float(second))
    assert len(api_server.of("patch")) == 60


def test_another_owner_keeps_its_field_and_the_other_field_goes_on(
    bench: Bench, api_server: ApiServer, metrics: SidecarMetrics
) -> None:
    api_server.set_annotation(COST, "7", "karpenter")
    bench.cost.want("104", 0.0)
    bench.gate.want("open", 0.0)
    for second in range(600):
        bench.writer.turn(float(second))
    assert api_server.annotations == {COST: "7"}
    assert api_server.conditions[GATE]["status"] == "True"
    assert len([c for c in api_server.of("patch") if "annotations" in c.body["metadata"]]) == 1
    assert value(metrics, "weir_sidecar_field_yielded", field="deletion_cost") == 1


def test_a_field_that_its_other_owner_gave_up_is_taken_again(
    bench: Bench, api_server: ApiServer, metrics: SidecarMetrics
) -> None:
    api_server.set_annotation(COST, "7", "karpenter")
    bench.cost.want("104", 0.0)
    bench.writer.turn(0.0)
    api_server.set_annotation(COST, None, "karpenter")
    bench.writer.turn(600.0)
    assert api_server.annotations[COST] == "104"
    assert value(metrics, "weir_sidecar_field_yielded", field="deletion_cost") == 0


def test_a_token_that_was_rotated_costs_one_more_call(bench: Bench, api_server: ApiServer) -> None:
    bench.cost.want("0", 0.0)
    bench.writer.turn(0.0)
    api_server.tokens = {"first": 0.0, "second": float("inf")}
    api_server.write_token("second")
    bench.cost.want("100", 60.0)
    bench.writer.turn(120.0)
    assert api_server.annotations[COST] == "100"
    assert [call.token for call in api_server.of("patch")] == ["first", "first", "second"]


def test_a_token_that_stays_wrong_is_not_hammered(bench: Bench, api_server: ApiServer) -> None:
    api_server.tokens = {"another": float("inf")}
    bench.cost.want("0", 0.0)
    for second in range(60):
        bench.writer.turn(float(second))
    # Tries at 0, 1, 3, 7, 15 and 31 s, each of two calls.
    assert len(api_server.of("patch")) == 12


def test_missing_permission_is_asked_for_once_a_minute_with_one_line_in_the_log(
    bench: Bench, api_server: ApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    api_server.rules = ()
    bench.cost.want("0", 0.0)
    for second in range(600):
        bench.cost.want(str(second % 3), float(second))
        bench.writer.turn(float(second))
    # Refused at 0, 1, 3, 7, 15, 31, 63 s and then at each 60 s: 123, ..., 543 s.
    assert len(api_server.of("patch")) == 7 + 8
    assert len([r for r in caplog.records if "may not be written" in r.message]) == 1


def test_a_policy_that_refuses_one_field_does_not_keep_the_other_from_being_written(
    bench: Bench, api_server: ApiServer
) -> None:
    api_server.faults.append(Fault("patch", 422))
    bench.cost.want("0", 0.0)
    bench.gate.want("open", 0.0)
    bench.writer.turn(0.0)
    assert api_server.conditions[GATE]["status"] == "True"
    bench.writer.turn(1.0)
    assert api_server.annotations == {COST: "0"}


def test_an_overloaded_server_is_left_alone_as_long_as_it_asks(bench: Bench, api_server: ApiServer) -> None:
    api_server.faults.append(Fault("patch", 429, {"Retry-After": "30"}))
    bench.cost.want("0", 0.0)
    bench.gate.want("open", 0.0)
    for second in range(30):
        bench.writer.turn(float(second))
    assert len(api_server.of("patch")) == 1
    bench.writer.turn(30.0)
    assert api_server.annotations == {COST: "0"}
    assert api_server.conditions[GATE]["status"] == "True"


def test_errors_of_the_server_are_survived_with_one_line_in_the_log(
    bench: Bench, api_server: ApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    api_server.faults.extend(Fault("patch", 500) for _ in range(3))
    bench.cost.want("0", 0.0)
    for second in range(10):
        bench.writer.turn(float(second))
    # Failed at 0, 1 and 3 s; written at 7 s.
    assert len(api_server.of("patch")) == 4
    assert api_server.annotations[COST] == "0"
    assert len([r for r in caplog.records if "does not answer" in r.message]) == 1


def test_an_overloaded_server_is_asked_less_often_than_one_that_is_away(bench: Bench, api_server: ApiServer) -> None:
    counts = []
    for status in (429, 503):
        bench.cost.want(str(status), 0.0)
        api_server.faults.extend(Fault("patch", status) for _ in range(1000))
        before = len(api_server.of("patch"))
        for second in range(600):
            bench.writer.turn(float(second))
        counts.append(len(api_server.of("patch")) - before)
        api_server.faults.clear()
        bench.writer.turn(700.0)
    # At 0, 1, 3, ..., 63 s and every 60 s from there; at 0, 1, 3, 7 s and every 6 s from there.
    assert counts == [7 + 8, 4 + 98]
