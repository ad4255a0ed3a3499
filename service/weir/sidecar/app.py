"""The sidecar: looks at the engine, decides, and hands what is to be written to the writer."""

from __future__ import annotations

import logging
import random
import signal
from collections.abc import Callable
from pathlib import Path

from weir.sidecar.clock import Clock, SystemClock
from weir.sidecar.connection import Connection
from weir.sidecar.drain import DrainCoordinator, Stage
from weir.sidecar.engine_link import EngineLink, EngineView
from weir.sidecar.fields import ManagedField
from weir.sidecar.gate import KvReadyGate
from weir.sidecar.kube import PodApi, PodView
from weir.sidecar.levels import DeletionCost
from weir.sidecar.metrics import SidecarMetrics
from weir.sidecar.settings import PodIdentity, SidecarSettings
from weir.sidecar.state_log import StateLog
from weir.sidecar.watcher import PodWatcher
from weir.sidecar.writer import FieldWriter

DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
# What Kubernetes reads where the annotation is not.
NO_COST = "0"
KV_READY = "weir.inference/kv-ready"
OPEN, CLOSED = "open", "closed"
GATE_INTERVAL_S = 5.0
# A pod with a gate is not ready before its first condition. A thousand pods that start together write it in this time.
GATE_SPREAD_S = 60.0
ENDING_INTERVAL_S = 0.5
# A loop that has not come round for so long is stuck.
STUCK_S = 30.0
LAST_WRITES_S = 3.0
TERMINATION_LOG = Path("/dev/termination-log")

_log = logging.getLogger(__name__)


class Sidecar:
    """Composes the parts. `run` lives in the main thread; writer and watcher in threads of their own.

    Where neither the deletion cost nor the gate is kept, nothing is asked of the API server, and no right is needed.
    """

    def __init__(
        self,
        settings: SidecarSettings,
        identity: PodIdentity,
        link: EngineLink,
        connection: Connection,
        metrics: SidecarMetrics,
        termination_log: Path = TERMINATION_LOG,
        clock: Clock | None = None,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._settings = settings
        self._link = link
        self._metrics = metrics
        self._termination_log = termination_log
        self._clock = clock or SystemClock()
        self._log = StateLog(_log)
        self._inbox = self._clock.inbox()
        self._stopped = False
        self._came_round_at = self._clock.now()
        self._reported = False
        self._in_replica_set = False
        self._cost = DeletionCost()
        self._gate = KvReadyGate(settings.gate_max_wait_s, settings.gate_max_closed_s)
        self._drain = DrainCoordinator(link, settings.pre_stop_delay_s, settings.drain_timeout_s)
        api = PodApi(identity, connection, metrics, through_status=settings.readiness_gate)
        interval_s, began_at = settings.deletion_cost_interval_s, self._clock.now()
        self._cost_field = ManagedField(
            "deletion_cost",
            interval_s,
            began_at + draw() * interval_s,
            # A manager for each field: an apply names all fields that its manager owns.
            lambda value: api.apply_annotation(DELETION_COST, value, "weir-sidecar-deletion-cost"),
            draw,
        )
        self._ready_field = ManagedField(
            "kv_ready",
            GATE_INTERVAL_S,
            began_at + draw() * GATE_SPREAD_S,
            lambda value: _apply_gate(api, value),
            draw,
        )
        fields = (self._ready_field, self._cost_field)
        self._writer = FieldWriter(fields, api.forget_token, metrics, self._log, self._clock, draw)
        # First what makes pods ready, then what they want to know.
        watches_after_s = GATE_SPREAD_S if settings.readiness_gate else 0.0
        self._watcher = PodWatcher(api, self._see_pod, self._log, self._clock, watches_after_s, draw)

    def run(self) -> int:
        """Until `stop`. Always 0: what goes wrong here is no reason to end a pod."""
        _log.info("engine at %s", self._settings.admin_address)
        uses_api = self._settings.deletion_cost or self._settings.readiness_gate
        if uses_api:
            self._clock.start("writer", self._writer.run)
            self._clock.start("watcher", self._watcher.run)
        while not self._stopped:
            self._turn(self._clock.now())
            self._receive()
        self._drain.conclude(self._clock.now())
        self._report_drain()
        if self._settings.readiness_gate:
            # A gate that nobody keeps must stand open.
            self._ready_field.want(OPEN, self._clock.now())
            self._ready_field.hurry()
        if uses_api:
            self._watcher.stop()
            self._writer.stop(LAST_WRITES_S)
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

    def is_healthy(self) -> bool:
        """Whether the main loop comes round."""
        return self._clock.now() - self._came_round_at < STUCK_S

    def _receive(self) -> None:
        wait_s = self._settings.interval_s
        if self._drain.stage in (Stage.LEAVING, Stage.DRAINING):
            wait_s = min(wait_s, ENDING_INTERVAL_S)
        message = self._inbox.get(wait_s)
        if message == "stop":
            self._stopped = True
        elif message is not None:
            self._drain.begin(self._clock.now())
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
            is_open = self._gate.update(view, now)
            self._metrics.gate_open.set(is_open)
            self._log.set("gate", *self._gate_state(is_open))
            self._keep(self._ready_field, OPEN if is_open else CLOSED, now)
        if view is None:
            return
        cost = self._cost.update(view)
        self._metrics.deletion_cost.set(cost)
        if self._settings.deletion_cost and self._in_replica_set:
            self._keep(self._cost_field, str(cost), now)

    def _gate_state(self, is_open: bool) -> tuple[str, str, int]:
        if is_open:
            return OPEN, f"open: {self._gate.why}", logging.INFO
        return CLOSED, f"closed, the pod leaves its Services: {self._gate.why}", logging.WARNING

    def _keep(self, field: ManagedField, value: str, now: float) -> None:
        if field.want(value, now):
            self._writer.wake()

    def _report_drain(self) -> None:
        report = self._drain.report
        if report is None or self._reported:
            return
        self._reported = True
        self._metrics.drain_seconds.set(report.seconds)
        self._metrics.drain_left.set(report.left)
        try:
            self._termination_log.write_text(f"drain {report}\n")
        except OSError as error:
            _log.debug("no termination log: %s", error)

    def _see_pod(self, view: PodView) -> None:
        """In the watcher's thread."""
        now = self._clock.now()
        self._in_replica_set = "ReplicaSet" in view.owner_kinds
        found = {"True": OPEN, "False": CLOSED}.get(view.conditions.get(KV_READY, ""), "missing")
        lost = self._cost_field.saw(view.annotations.get(DELETION_COST, NO_COST), now)
        if self._ready_field.saw(found, now) or lost:
            self._writer.wake()
        if view.deleting:
            # The hook's signal usually came first; this is for when it did not.
            self.begin_end()


def _apply_gate(api: PodApi, value: str) -> None:
    is_open = value == OPEN
    reason = "QueueWithinBound" if is_open else "QueueTooLong"
    api.apply_condition(KV_READY, is_open, reason, "weir-sidecar-kv-ready")
