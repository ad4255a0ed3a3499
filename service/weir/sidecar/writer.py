"""The thread that writes to the pod, so that an API server that hangs delays nothing else."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Sequence

from weir.sidecar.backoff import MOST_S, Backoff
from weir.sidecar.clock import Clock
from weir.sidecar.fields import ManagedField
from weir.sidecar.kube import ApiError, FaultKind
from weir.sidecar.metrics import SidecarMetrics
from weir.sidecar.state_log import StateLog

TOPIC = "kubernetes API"
# How long a field stays with another manager before it is tried again.
GIVE_WAY_S = 600.0
# A server that is away is asked so often that writes resume within ten seconds of its return, be it that the last call
# before it was left without an answer until its timeout.
AWAY_MOST_S = 6.0
# The longest sleep; a field that becomes due wakes the thread.
IDLE_S = 60.0
STOP, WAKE = "stop", "wake"


class FieldWriter:
    """Writes what is due, one field after another."""

    def __init__(
        self,
        fields: Sequence[ManagedField],
        forget_token: Callable[[], None],
        metrics: SidecarMetrics,
        log: StateLog,
        clock: Clock,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._fields = fields
        self._forget_token = forget_token
        self._metrics = metrics
        self._log = log
        self._clock = clock
        self._backoff = Backoff(draw)
        self._inbox, self._ended = clock.inbox(), clock.inbox()

    def run(self) -> None:
        """Write until `stop`, and then once more what is due."""
        while self._inbox.get(self._sleep_s()) != STOP:
            self.turn(self._clock.now())
        self.turn(self._clock.now())
        self._ended.put(STOP)

    def wake(self) -> None:
        """A field changed."""
        self._inbox.put(WAKE)

    def stop(self, wait_s: float) -> None:
        """End `run`; wait for its last writes."""
        self._inbox.put(STOP)
        self._ended.get(wait_s)

    def turn(self, now: float) -> None:
        """Write each field that is due, unless the API server is to be left alone for now."""
        for field in self._fields:
            value = field.due(now)
            if value is not None and self._backoff.ready(now):
                self._write(field, value, now)

    def _sleep_s(self) -> float:
        due_at = max(min(field.due_at() for field in self._fields), self._backoff.until)
        return min(IDLE_S, max(0.0, due_at - self._clock.now()))

    def _write(self, field: ManagedField, value: str, now: float) -> None:
        field.begin()
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
            case FaultKind.CONFLICT:
                field.refused(now, GIVE_WAY_S)
                self._metrics.yielded.labels(field.name).set(1)
                self._log.set(field.name, "yielded", f"left to its other owner for now ({fault})")
            case FaultKind.DENIED | FaultKind.MISSING | FaultKind.INVALID | FaultKind.GONE:
                # It comes back with a change of a Role or a policy, which nobody tells us.
                field.refused(now, fault.retry_after_s)
                again = f"trying again every {MOST_S:.0f} s or sooner"
                self._log.set(field.name, fault.kind.value, f"may not be written, {again} ({fault})")
            case _:
                field.doubt(now)
                is_away = fault.kind in (FaultKind.UNREACHABLE, FaultKind.FAILING)
                self._backoff.failed(now, fault.retry_after_s, AWAY_MOST_S if is_away else MOST_S)
                self._log.set(TOPIC, fault.kind.value, f"does not answer, trying again ({fault})")
