"""The thread that writes to the pod, so that an API server that hangs delays nothing else."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from weir.sidecar.backoff import DENIED_S, Backoff
from weir.sidecar.fields import ManagedField
from weir.sidecar.kube import ApiError, FaultKind
from weir.sidecar.metrics import SidecarMetrics
from weir.sidecar.state_log import StateLog

TOPIC = "kubernetes API"
# How long a field stays with another manager before it is tried again.
GIVE_WAY_S = 600.0


class FieldWriter:
    """Writes what is due, one field after another."""

    def __init__(
        self,
        fields: Sequence[ManagedField],
        forget_token: Callable[[], None],
        metrics: SidecarMetrics,
        log: StateLog,
        backoff: Backoff | None = None,
    ) -> None:
        self._fields = fields
        self._forget_token = forget_token
        self._metrics = metrics
        self._log = log
        self._backoff = backoff or Backoff()

    def run(self, stopped: threading.Event, wait_s: float = 0.2) -> None:
        """Write until `stopped`, and then once more what is due."""
        while not stopped.wait(wait_s):
            self.turn(time.monotonic())
        self.turn(time.monotonic())

    def turn(self, now: float) -> None:
        """Write each field that is due, unless the API server is to be left alone for now."""
        for field in self._fields:
            value = field.due(now)
            if value is not None and self._backoff.ready(now):
                self._write(field, value, now)

    def _write(self, field: ManagedField, value: str, now: float) -> None:
        try:
            self._apply(field, value)
        except ApiError as fault:
            self._failed(field, fault, now)
        else:
            self._backoff.succeeded()
            field.wrote(value, now)
            self._metrics.writes.labels(field.name).inc()
            self._metrics.yielded.labels(field.name).set(0)
            self._log.set(field.name, "kept", f"now {value}", logging.INFO)
            self._log.set(TOPIC, "ok", "answers", logging.INFO)

    def _apply(self, field: ManagedField, value: str) -> None:
        try:
            field.apply(value)
        except ApiError as fault:
            if fault.kind is not FaultKind.UNAUTHORIZED:
                raise
            # The token may just have been rotated: once more, with the one that is in the file now.
            self._forget_token()
            field.apply(value)

    def _failed(self, field: ManagedField, fault: ApiError, now: float) -> None:
        match fault.kind:
            case FaultKind.CONFLICT | FaultKind.INVALID | FaultKind.GONE:
                field.hold(now, GIVE_WAY_S)
                self._metrics.yielded.labels(field.name).set(1)
                self._log.set(field.name, "yielded", f"left to its other owner for now ({fault})")
            case FaultKind.DENIED | FaultKind.MISSING:
                field.hold(now, DENIED_S)
                self._log.set(
                    field.name, fault.kind.value, f"may not be written, next try in {DENIED_S:.0f} s ({fault})"
                )
            case _:
                self._backoff.failed(now, fault.retry_after_s)
                self._log.set(TOPIC, fault.kind.value, f"does not answer, trying again ({fault})")
