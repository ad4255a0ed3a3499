"""The sidecar: looks at the engine, decides, and hands what is to be written to the writer."""

from __future__ import annotations

import logging
import queue
import signal
import threading
import time
from pathlib import Path

from weir.sidecar.drain import DrainCoordinator, Stage
from weir.sidecar.engine_link import EngineLink, EngineView
from weir.sidecar.fields import ManagedField
from weir.sidecar.gate import KvReadyGate
from weir.sidecar.http_port import HttpPort
from weir.sidecar.kube import PodApi, PodView
from weir.sidecar.levels import DeletionCost, KvLevel
from weir.sidecar.metrics import SidecarMetrics
from weir.sidecar.settings import SidecarSettings
from weir.sidecar.state_log import StateLog
from weir.sidecar.watcher import PodWatcher
from weir.sidecar.writer import FieldWriter

DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
KV_LEVEL = "weir.inference/kv-level"
DRAIN = "weir.inference/drain"
KV_READY = "weir.inference/kv-ready"
GATE_INTERVAL_S = 5.0
ENDING_INTERVAL_S = 0.5
# A loop that has not come round for so long is stuck.
STUCK_S = 30.0
LAST_WRITES_S = 3.0
TERMINATION_LOG = Path("/dev/termination-log")

_log = logging.getLogger(__name__)


class Sidecar:
    """Composes the parts. `run` lives in the main thread; writer, watcher and HTTP port in threads of their own."""

    def __init__(
        self,
        settings: SidecarSettings,
        link: EngineLink,
        api: PodApi,
        metrics: SidecarMetrics,
        termination_log: Path = TERMINATION_LOG,
    ) -> None:
        self._settings = settings
        self._link = link
        self._api = api
        self._metrics = metrics
        self._termination_log = termination_log
        self._log = StateLog(_log)
        # A queue and not an event: a signal handler may put into it whatever the main thread is doing.
        self._inbox: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._stopped = False
        self._came_round_at = time.monotonic()
        self._reported = False
        self._in_replica_set = False
        self._cost, self._level = DeletionCost(), KvLevel()
        self._gate = KvReadyGate(settings.gate_max_wait_s, settings.gate_max_closed_s)
        self._drain = DrainCoordinator(link, settings.pre_stop_delay_s, settings.drain_timeout_s)
        self._cost_field = self._annotation("deletion_cost", DELETION_COST, settings.deletion_cost_interval_s)
        self._level_field = self._annotation("kv_level", KV_LEVEL, settings.kv_level_interval_s)
        self._drain_field = self._annotation("drain", DRAIN, 0.0)
        self._ready_field = ManagedField("kv_ready", GATE_INTERVAL_S, self._apply_gate)
        fields = (self._ready_field, self._drain_field, self._cost_field, self._level_field)
        self._writer = FieldWriter(fields, api.forget_token, metrics, self._log)
        self._watcher = PodWatcher(api, self._see_pod, self._log)
        self.http = HttpPort(settings.host, settings.port, metrics.registry, self._is_healthy)

    def run(self) -> int:
        """Until `stop`. Always 0: what goes wrong here is no reason to end a pod."""
        self.http.start()
        done = threading.Event()
        writer = threading.Thread(target=self._writer.run, args=(done,), name="writer", daemon=True)
        watcher = threading.Thread(target=self._watcher.run, args=(done,), name="watcher", daemon=True)
        writer.start()
        watcher.start()
        _log.info("metrics on port %d, engine at %s", self.http.port, self._settings.admin_address)
        while not self._stopped:
            self._turn(time.monotonic())
            self._receive()
        self._drain.conclude(time.monotonic())
        self._report_drain()
        if self._settings.readiness_gate:
            # A gate that nobody keeps must stand open.
            self._ready_field.want("open")
            self._ready_field.hurry()
        done.set()
        writer.join(LAST_WRITES_S)
        self.http.stop()
        self._link.close()
        return 0

    def handle_signals(self) -> None:
        """SIGUSR1: the pod began to terminate. SIGTERM, SIGINT: end."""
        signal.signal(signal.SIGUSR1, lambda *_: self.begin_end())
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self.stop())

    def begin_end(self) -> None:
        """The pod began to terminate."""
        self._inbox.put("end")

    def stop(self) -> None:
        """End `run`."""
        self._inbox.put("stop")

    def _receive(self) -> None:
        wait_s = self._settings.interval_s
        if self._drain.stage in (Stage.LEAVING, Stage.DRAINING):
            wait_s = min(wait_s, ENDING_INTERVAL_S)
        try:
            message = self._inbox.get(timeout=wait_s)
        except queue.Empty:
            return
        if message == "stop":
            self._stopped = True
        else:
            self._drain.begin(time.monotonic())
            self._metrics.draining.set(1)

    def _turn(self, now: float) -> None:
        self._came_round_at = now
        view = self._link.look()
        self._metrics.see(view)
        self._log.set("engine", "up" if view else "down", "answers" if view else "does not answer yet", logging.INFO)
        self._drain.tick(now, view)
        self._report_drain()
        if self._drain.stage is Stage.SERVING:
            self._decide(view, now)

    def _decide(self, view: EngineView | None, now: float) -> None:
        if self._settings.readiness_gate:
            self._ready_field.want("open" if self._gate.update(view, now) else "closed")
        if view is None:
            return
        cost = self._cost.update(view)
        self._metrics.deletion_cost.set(cost)
        if self._settings.deletion_cost and self._in_replica_set:
            self._cost_field.want(str(cost))
        if self._settings.kv_level:
            self._level_field.want(self._level.update(view))

    def _report_drain(self) -> None:
        report = self._drain.report
        if report is None or self._reported:
            return
        self._reported = True
        self._metrics.drain_seconds.set(report.seconds)
        self._metrics.drain_left.set(report.left)
        self._drain_field.want(str(report))
        try:
            self._termination_log.write_text(f"drain {report}\n")
        except OSError as error:
            _log.debug("no termination log: %s", error)

    def _see_pod(self, view: PodView) -> None:
        self._in_replica_set = "ReplicaSet" in view.owner_kinds
        if view.deleting:
            # The hook's signal usually came first; this is for when it did not.
            self.begin_end()

    def _annotation(self, name: str, key: str, min_interval_s: float) -> ManagedField:
        # A manager for each field: an apply names all fields that its manager owns.
        manager = f"weir-sidecar-{name.replace('_', '-')}"
        return ManagedField(name, min_interval_s, lambda value: self._api.apply_annotation(key, value, manager))

    def _apply_gate(self, value: str) -> None:
        is_open = value == "open"
        reason = "QueueWithinBound" if is_open else "QueueTooLong"
        self._api.apply_condition(KV_READY, is_open, reason, "weir-sidecar-kv-ready")

    def _is_healthy(self) -> bool:
        return time.monotonic() - self._came_round_at < STUCK_S
