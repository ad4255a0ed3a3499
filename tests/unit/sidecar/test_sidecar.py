"""The whole sidecar between a real API server and an engine's socket."""

from __future__ import annotations

import logging
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from weir.sidecar.app import DELETION_COST, DRAIN, KV_LEVEL, Sidecar
from weir.sidecar.engine_link import EngineLink
from weir.sidecar.kube import PodApi
from weir.sidecar.metrics import SidecarMetrics
from weir.sidecar.settings import SidecarSettings

from tests.unit.sidecar.api_server import IDENTITY, ApiServer, Fault
from tests.unit.sidecar.conftest import FAST, eventually, value
from tests.unit.sidecar.engine_server import FakeEngine, serving


class Harness:
    """Starts sidecars and ends them with the test."""

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
                "host": "127.0.0.1",
                "port": 0,
                "interval_s": 0.02,
                "deletion_cost_interval_s": 0.3,
                "kv_level_interval_s": 0.3,
                "pre_stop_delay_s": 0.2,
            }
            | changes
        )
        api = PodApi(IDENTITY, self.metrics, FAST, self._server.folder, self._server.env)
        sidecar = Sidecar(settings, EngineLink(self._address), api, self.metrics, self.termination_log)
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
def harness(api_server: ApiServer, engine: FakeEngine, tmp_path: Path) -> Iterator[Harness]:
    made = Harness(api_server, engine.address, tmp_path)
    yield made
    made.stop()


def test_the_cost_follows_the_work_and_the_warmth(harness: Harness, api_server: ApiServer, engine: FakeEngine) -> None:
    engine.running, engine.queued, engine.cached, engine.used = 3, 1, 300, 600
    harness.start()
    eventually(lambda: api_server.annotations == {DELETION_COST: "302", KV_LEVEL: "medium"})
    engine.running, engine.queued, engine.used = 0, 0, 0
    eventually(lambda: api_server.annotations == {DELETION_COST: "2", KV_LEVEL: "low"})
    assert value(harness.metrics, "weir_sidecar_deletion_cost") == 2
    assert api_server.owners[DELETION_COST] == "weir-sidecar-deletion-cost"


def test_what_does_not_change_is_not_written_again(harness: Harness, api_server: ApiServer, engine: FakeEngine) -> None:
    engine.running = 4
    harness.start()
    eventually(lambda: len(api_server.annotations) == 2)
    looks = threading.Event()
    looks.wait(1.0)
    assert len(api_server.of("patch")) == 2


def test_pods_that_no_replica_set_owns_get_no_cost(harness: Harness, api_server: ApiServer, engine: FakeEngine) -> None:
    api_server.pod["metadata"]["ownerReferences"] = [{"kind": "StatefulSet"}]
    harness.start()
    eventually(lambda: KV_LEVEL in api_server.annotations)
    threading.Event().wait(0.5)
    assert DELETION_COST not in api_server.annotations


def test_features_that_are_off_write_nothing(harness: Harness, api_server: ApiServer) -> None:
    harness.start(deletion_cost=False, kv_level=False)
    eventually(lambda: len(api_server.of("watch")) == 1)
    threading.Event().wait(0.3)
    assert api_server.of("patch") == []


def test_the_end_of_a_pod_stops_new_work_after_the_delay_waits_and_reports(
    harness: Harness, api_server: ApiServer, engine: FakeEngine
) -> None:
    engine.running = 2
    sidecar = harness.start(pre_stop_delay_s=0.5)
    eventually(lambda: len(api_server.annotations) == 2)
    sidecar.begin_end()
    threading.Event().wait(0.2)
    assert not engine.drained.is_set()
    eventually(engine.drained.is_set)
    assert DRAIN not in api_server.annotations
    engine.running = 0
    eventually(lambda: DRAIN in api_server.annotations)
    assert api_server.annotations[DRAIN].startswith("done after")
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
    api_server.faults.extend([Fault("patch", hang_s=5.0), Fault("get", hang_s=5.0)])
    sidecar = harness.start(pre_stop_delay_s=0.0)
    sidecar.begin_end()
    eventually(engine.drained.is_set, limit_s=2.0)
    eventually(lambda: harness.termination_log.exists(), limit_s=2.0)


def test_an_api_server_full_of_faults_is_survived(harness: Harness, api_server: ApiServer, engine: FakeEngine) -> None:
    api_server.faults.extend(
        [Fault("get", 500), Fault("watch", 410), Fault("patch", 503), Fault("patch", is_drop=True), Fault("watch", 500)]
    )
    engine.running = 1
    harness.start()
    eventually(lambda: api_server.annotations.get(DELETION_COST) == "100", limit_s=20.0)


def test_a_token_rotated_under_way_is_picked_up(harness: Harness, api_server: ApiServer, engine: FakeEngine) -> None:
    harness.start()
    eventually(lambda: len(api_server.annotations) == 2)
    api_server.tokens = {"second"}
    api_server.write_token("second")
    engine.running = 1
    eventually(lambda: api_server.annotations[DELETION_COST] == "100")


def test_without_permission_there_is_one_warning_and_the_drain_still_works(
    harness: Harness, api_server: ApiServer, engine: FakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    api_server.faults.extend(Fault(verb, 403) for verb in ("get", "watch", "patch", "patch") for _ in range(20))
    sidecar = harness.start(pre_stop_delay_s=0.0, kv_level=True)
    eventually(lambda: value(harness.metrics, "weir_sidecar_k8s_api_errors_total", kind="denied") >= 2)
    threading.Event().wait(0.5)
    topics = [record.message.split(":")[0] for record in caplog.records]
    assert len(topics) == len(set(topics))
    sidecar.begin_end()
    eventually(engine.drained.is_set)


def test_the_gate_opens_first_closes_for_a_long_queue_and_is_left_open(
    harness: Harness, api_server: ApiServer, engine: FakeEngine
) -> None:
    def status() -> str | None:
        conditions = api_server.pod["status"]["conditions"]
        return conditions[0]["status"] if conditions else None

    harness.start(readiness_gate=True, gate_max_wait_s=10.0, gate_max_closed_s=60.0)
    eventually(lambda: status() == "True")
    engine.wait_s = 30.0
    eventually(lambda: status() == "False")
    harness.stop()
    assert status() == "True"


def test_health_and_metrics_answer_and_nothing_else_does(harness: Harness, engine: FakeEngine) -> None:
    sidecar = harness.start()
    base = f"http://127.0.0.1:{sidecar.http.port}"
    eventually(lambda: b"weir_sidecar_engine_up 1.0" in urllib.request.urlopen(f"{base}/metrics").read())
    assert urllib.request.urlopen(f"{base}/healthz").read() == b"ok\n"
    for path in ("/", "/prestop", "/drain"):
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(base + path)
    with pytest.raises(urllib.error.HTTPError, match="501"):
        urllib.request.urlopen(base + "/drain", data=b"")
    assert not engine.drained.is_set()


def test_every_series_is_there_before_anything_happens() -> None:
    metrics = SidecarMetrics()
    for kind in ("denied", "conflict", "unreachable"):
        assert value(metrics, "weir_sidecar_k8s_api_errors_total", kind=kind) == 0
    assert value(metrics, "weir_sidecar_engine_up") == 0
    assert value(metrics, "weir_sidecar_drain_seconds") == 0


def test_an_engine_that_comes_later_is_found(api_server: ApiServer, tmp_path: Path) -> None:
    late = Harness(api_server, f"unix:{tmp_path / 'admin.sock'}", tmp_path)
    try:
        late.start()
        threading.Event().wait(0.3)
        assert value(late.metrics, "weir_sidecar_engine_up") == 0
        with serving(tmp_path):
            eventually(lambda: KV_LEVEL in api_server.annotations)
    finally:
        late.stop()
