"""The thread that watches the own pod: who owns it, and whether it is being deleted."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from weir.sidecar.backoff import DENIED_S, Backoff
from weir.sidecar.kube import ApiError, FaultKind, PodApi, PodView
from weir.sidecar.state_log import StateLog

TOPIC = "watch of the pod"
PAUSE_S = 1.0


class PodWatcher:
    """Hands every state of the pod to `see`, from a get and the watch that goes on from it."""

    def __init__(
        self, api: PodApi, see: Callable[[PodView], None], log: StateLog, backoff: Backoff | None = None
    ) -> None:
        self._api = api
        self._see = see
        self._log = log
        self._backoff = backoff or Backoff()

    def run(self, stopped: threading.Event) -> None:
        """Watch until `stopped`."""
        while not stopped.is_set():
            try:
                self._follow(stopped)
            except ApiError as fault:
                stopped.wait(self._pause_s(fault))

    def _follow(self, stopped: threading.Event) -> None:
        view = self._api.get()
        while not stopped.is_set():
            self._see(view)
            self._backoff.succeeded()
            self._log.set(TOPIC, "ok", "runs", logging.INFO)
            version = view.resource_version
            for view in self._api.watch(version):
                self._see(view)
                if stopped.is_set():
                    return
            # A server that ends each watch at once must not be asked in a tight loop.
            stopped.wait(PAUSE_S)

    def _pause_s(self, fault: ApiError) -> float:
        now = time.monotonic()
        match fault.kind:
            case FaultKind.GONE:
                # The version is too old to go on from; the next get has a new one.
                return self._backoff.failed(now)
            case FaultKind.UNAUTHORIZED:
                self._api.forget_token()
                wait_s = self._backoff.failed(now)
            case FaultKind.DENIED | FaultKind.MISSING:
                wait_s = self._backoff.failed(now, DENIED_S)
            case _:
                wait_s = self._backoff.failed(now, fault.retry_after_s)
        self._log.set(TOPIC, fault.kind.value, f"failed, next try in {wait_s:.0f} s ({fault})")
        return wait_s
