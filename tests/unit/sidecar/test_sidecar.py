"""The whole sidecar between a real API server and an engine's socket."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from weir.sidecar.app import DELETION_COST, KV_READY, Sidecar
from weir.sidecar.connection import ClusterConnection
from weir.sidecar.engine_link import EngineLink
from weir.sidecar.metrics import SidecarMetrics
from weir.sidecar.settings import SidecarSettings

from tests.unit.sidecar.api_server import IDENTITY, ApiServer, Fault
from tests.unit.sidecar.conftest import eventually, value
from tests.unit.sidecar.engine_server import FakeEngine, serving
from tests.unit.sidecar.rights import COST_RULES


class Harness:
    """Starts sidecars, which then begin at once, and ends them with the test."""

    def __init__(self, server: ApiServer, address: str, folder: Path) -> None:
        self._server = server
        self._address = address
        self.termination_log = folder / "termination-log"
        self.metrics = SidecarMetrics()
        self._running: list[tuple[Sidecar, threading.Thread]] = []

    def start(self, **changes: object) -> Sidecar:
        settings = SidecarSettings.model_validate(
            {
                "admin_address": self._address,
                "interval_s": 0.02,
                "deletion_cost_interval_s": 0.3,
                "pre_stop_delay_s": 0.2,
            }
            | changes
        )
        if not settings.readiness_gate:
            self._server.rules = COST_RULES
        connection = ClusterConnection(self._server.folder, self._server.env)
        sidecar = Sidecar(
            settings,
            IDENTITY,
            EngineLink(self._address),
            connection,
            self.metrics,
            self.termination_log,
            draw=lambda: 0.0,
        )
        thread = threading.Thread(target=sidecar.run, daemon=True)
        thread.start()
        self._running.append((sidecar, thread))
        return sidecar

    def stop(self) -> None:
        for sidecar, thread in self._running:
            sidecar.stop()
            thread.join(10.0)
            assert not thread.is_alive()
        self._running.clear()


@pytest.fixture
def harness(
    api_server: ApiServer, engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Harness]:
    monkeypatch.setattr("weir.sidecar.app.GATE_SPREAD_S", 0.0)
    monkeypatch.setattr("weir.sidecar.app.GATE_INTERVAL_S", 0.1)
    made = Harness(api_server, engine.address, tmp_path)
    yield made
    made.stop()


def status(server: ApiServer) -> str | None:
    return str(server.conditions[KV_READY]["status"]) if KV_READY in server.conditions else None


def test_the_cost_follows_the_work_and_the_warmth(harness: Harness, api_server: ApiServer, engine: FakeEngine) -> None:
    engine.running, engine.queued, engine.cached = 3, 1, 300
    harness.start()
    eventually(lambda: api_server.annotations == {DELETION_COST: "302"})
    engine.running, engine.queued = 0, 0
    eventually(lambda: api_server.annotations == {DELETION_COST: "2"})
    assert value(harness.metrics, "weir_sidecar_deletion_cost") == 2
    assert api_server.owner_of(DELETION_COST) == "weir-sidecar-deletion-cost"


def test_what_does_not_change_is_not_written_again(harness: Harness, api_server: ApiServer, engine: FakeEngine) -> None:
    engine.running = 4
    harness.start()
    eventually(lambda: DELETION_COST in api_server.annotations)
    threading.Event().wait(1.0)
    assert len(api_server.of("patch")) == 1


def test_an_idle_pod_without_the_annotation_gets_none_because_that_means_the_same(
    harness: Harness, api_server: ApiServer
) -> None:
    harness.start()
    eventually(lambda: value(harness.metrics, "weir_sidecar_engine_up") == 1)
    threading.Event().wait(0.7)
    assert [call.verb for call in api_server.calls] == ["watch"]


def test_a_cost_from_before_the_sidecar_was_restarted_is_corrected(harness: Harness, api_server: ApiServer) -> None:
    api_server.set_annotation(DELETION_COST, "804", "nobody")
    api_server.pod.owned.clear()
    harness.start()
    eventually(lambda: api_server.annotations == {DELETION_COST: "0"})


def test_an_annotation_that_somebody_removes_comes_back(
    harness: Harness, api_server: ApiServer, engine: FakeEngine
) -> None:
    engine.running = 1
    harness.start()
    eventually(lambda: api_server.annotations == {DELETION_COST: "100"})
    api_server.set_annotation(DELETION_COST, None, "kubectl-annotate")
    eventually(lambda: api_server.annotations == {DELETION_COST: "100"})


def test_pods_that_no_replica_set_owns_get_no_cost(harness: Harness, api_server: ApiServer, engine: FakeEngine) -> None:
    api_server.set_owner("StatefulSet")
    engine.running = 1
    harness.start()
    eventually(lambda: len(api_server.of("watch")) == 1)
    threading.Event().wait(0.7)
    assert api_server.of("patch") == []


def test_without_cost_and_gate_the_api_server_is_left_alone_and_the_drain_still_works(
    harness: Harness, api_server: ApiServer, engine: FakeEngine
) -> None:
    sidecar = harness.start(deletion_cost=False, pre_stop_delay_s=0.0)
    eventually(lambda: value(harness.metrics, "weir_sidecar_engine_up") == 1)
    sidecar.begin_end()
    eventually(engine.drained.is_set)
    harness.stop()
    assert api_server.calls == []


def test_the_end_of_a_pod_stops_new_work_after_the_delay_waits_and_reports(
    harness: Harness, engine: FakeEngine
) -> None:
    engine.running = 2
    sidecar = harness.start(pre_stop_delay_s=0.5)
    eventually(lambda: value(harness.metrics, "weir_sidecar_in_flight_requests") == 2)
    sidecar.begin_end()
    threading.Event().wait(0.2)
    assert not engine.drained.is_set()
    eventually(engine.drained.is_set)
    assert not harness.termination_log.exists()
    engine.running = 0
    eventually(harness.termination_log.exists)
    assert harness.termination_log.read_text().startswith("drain done after")
    assert "2 requests in flight at first, 0 at last" in harness.termination_log.read_text()
    assert value(harness.metrics, "weir_sidecar_draining") == 1
    assert value(harness.metrics, "weir_sidecar_drain_left_requests") == 0


def test_a_deletion_seen_by_the_watch_begins_the_drain_without_a_signal(
    harness: Harness, api_server: ApiServer, engine: FakeEngine
) -> None:
    harness.start()
    eventually(lambda: len(api_server.of("watch")) == 1)
    api_server.delete()
    eventually(engine.drained.is_set)


def test_the_cost_is_left_alone_once_the_pod_ends(harness: Harness, api_server: ApiServer, engine: FakeEngine) -> None:
    engine.running = 1
    sidecar = harness.start(pre_stop_delay_s=0.0)
    eventually(lambda: api_server.annotations.get(DELETION_COST) == "100")
    sidecar.begin_end()
    eventually(engine.drained.is_set)
    engine.running = 50
    threading.Event().wait(0.6)
    assert api_server.annotations[DELETION_COST] == "100"


def test_an_api_server_that_hangs_delays_no_drain(harness: Harness, api_server: ApiServer, engine: FakeEngine) -> None:
    api_server.faults.extend([Fault("patch", hang_s=5.0), Fault("watch", hang_s=5.0)])
    sidecar = harness.start(pre_stop_delay_s=0.0, readiness_gate=True)
    eventually(lambda: {call.verb for call in api_server.calls} == {"patch", "watch"})
    sidecar.begin_end()
    eventually(engine.drained.is_set, limit_s=2.0)
    eventually(harness.termination_log.exists, limit_s=2.0)


def test_an_api_server_full_of_faults_is_survived(harness: Harness, api_server: ApiServer, engine: FakeEngine) -> None:
    api_server.faults.extend(
        [Fault("watch", 410), Fault("patch", 503), Fault("patch", is_drop=True), Fault("watch", 500)]
    )
    engine.running = 1
    harness.start()
    eventually(lambda: api_server.annotations.get(DELETION_COST) == "100", limit_s=20.0)


def test_a_token_rotated_under_way_is_picked_up(harness: Harness, api_server: ApiServer, engine: FakeEngine) -> None:
    engine.running = 1
    harness.start()
    eventually(lambda: api_server.annotations.get(DELETION_COST) == "100")
    api_server.tokens = {"first": 0.0, "second": float("inf")}
    api_server.write_token("second")
    engine.running = 2
    eventually(lambda: api_server.annotations[DELETION_COST] == "200")


def test_without_permission_there_is_one_warning_each_and_the_drain_still_works(
    harness: Harness, api_server: ApiServer, engine: FakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    api_server.rules = ()
    sidecar = harness.start(pre_stop_delay_s=0.0, readiness_gate=True)

    def topics() -> list[str]:
        return sorted(record.message.split(":")[0] for record in caplog.records)

    eventually(lambda: len(api_server.of("patch")) >= 2 and len(api_server.of("watch")) >= 3)
    assert topics() == ["kv_ready", "watch of the pod"]
    sidecar.begin_end()
    eventually(engine.drained.is_set)


def test_the_gate_opens_first_closes_for_a_long_queue_and_is_left_open(
    harness: Harness, api_server: ApiServer, engine: FakeEngine
) -> None:
    harness.start(readiness_gate=True, gate_max_wait_s=10.0, gate_max_closed_s=60.0)
    eventually(lambda: status(api_server) == "True")
    engine.wait_s = 30.0
    eventually(lambda: status(api_server) == "False")
    harness.stop()
    assert status(api_server) == "True"


def test_every_transition_of_the_gate_is_in_the_log_and_the_gauge(
    harness: Harness, engine: FakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    harness.start(readiness_gate=True, gate_max_wait_s=10.0, gate_max_closed_s=60.0)
    assert value(harness.metrics, "weir_sidecar_gate_open") == 1
    for wait_s, is_open in ((30.0, 0), (1.0, 1), (45.5, 0)):
        engine.wait_s = wait_s
        eventually(lambda is_open=is_open: value(harness.metrics, "weir_sidecar_gate_open") == is_open)  # type: ignore[misc]
    lines = [(r.levelname, r.message) for r in caplog.records if r.message.startswith("gate:")]
    assert lines == [
        ("INFO", "gate: open: nothing speaks against it"),
        ("WARNING", "gate: closed, the pod leaves its Services: new work would wait 30.0 s, more than 10.0 s"),
        ("INFO", "gate: open: new work would wait 1.0 s"),
        ("WARNING", "gate: closed, the pod leaves its Services: new work would wait 45.5 s, more than 10.0 s"),
    ]


def test_a_condition_that_is_lost_is_written_again(harness: Harness, api_server: ApiServer) -> None:
    harness.start(readiness_gate=True)
    eventually(lambda: status(api_server) == "True")
    with api_server.lock:
        after = api_server.pod.shown()
        del after["metadata"]["managedFields"]
        after["status"]["conditions"] = [c for c in after["status"]["conditions"] if c["type"] != KV_READY]
        api_server.write(after)
    eventually(lambda: status(api_server) == "True")
    assert len(api_server.of("patch")) == 2


def test_every_series_is_there_before_anything_happens() -> None:
    metrics = SidecarMetrics()
    for kind in ("denied", "conflict", "failing", "unreachable"):
        assert value(metrics, "weir_sidecar_k8s_api_errors_total", kind=kind) == 0
    assert value(metrics, "weir_sidecar_engine_up") == 0
    assert value(metrics, "weir_sidecar_gate_open") == 1
    assert value(metrics, "weir_sidecar_drain_seconds") == 0


def test_an_engine_that_comes_later_is_found(api_server: ApiServer, tmp_path: Path) -> None:
    late = Harness(api_server, f"unix:{tmp_path / 'admin.sock'}", tmp_path)
    try:
        late.start()
        threading.Event().wait(0.3)
        assert value(late.metrics, "weir_sidecar_engine_up") == 0
        with serving(tmp_path) as engine:
            engine.running = 1
            eventually(lambda: api_server.annotations.get(DELETION_COST) == "100")
    finally:
        late.stop()
