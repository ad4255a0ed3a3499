"""The thread that watches the own pod: who owns it, what its fields are, and whether it is being deleted."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable

from weir.sidecar.backoff import MOST_S, Backoff
from weir.sidecar.clock import Clock
from weir.sidecar.kube import ApiError, FaultKind, PodApi, PodView
from weir.sidecar.state_log import StateLog

TOPIC = "watch of the pod"
# Nothing that a watch tells is urgent, so the pods of a large Deployment take their time: they start together.
START_SPREAD_S = 120.0
# They also lose their watches together, when an API server restarts.
REJOIN_SPREAD_S = 60.0
# Asked of the server is this long to twice as long.
LEAST_WATCH_S = 300
# A watch that ends sooner did not work, however it ended.
SETTLED_S = 30.0


class PodWatcher:
    """Hands the state of the pod to `see`, at the start of each watch and at each change.

    The first watch begins `not_before_s` after `run`, or up to START_SPREAD_S later.
    """

    def __init__(
        self,
        api: PodApi,
        see: Callable[[PodView], None],
        log: StateLog,
        clock: Clock,
        not_before_s: float = 0.0,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._api = api
        self._see = see
        self._log = log
        self._clock = clock
        self._not_before_s = not_before_s
        self._draw = draw
        self._backoff = Backoff(draw)
        self._inbox = clock.inbox()

    def run(self) -> None:
        """Watch until `stop`."""
        pause_s = self._not_before_s + self._draw() * START_SPREAD_S
        while self._inbox.get(pause_s) is None:
            pause_s = self._follow()

    def stop(self) -> None:
        """Begin no other watch."""
        self._inbox.put("stop")

    def _follow(self) -> float:
        """One watch, to its end; the seconds until the next."""
        began_at = self._clock.now()
        fault: ApiError | None = None
        try:
            for view in self._api.watch(int(LEAST_WATCH_S * (1 + self._draw()))):
                if view is not None:
                    self._see(view)
                self._settle(began_at)
        except ApiError as error:
            fault = error
        is_settled = self._settle(began_at)
        if fault is not None and fault.kind is FaultKind.UNAUTHORIZED:
            self._api.forget_token()
        at_least_s = fault.retry_after_s if fault is not None else 0.0
        if is_settled:
            return max(at_least_s, self._draw() * REJOIN_SPREAD_S)
        state, detail = (fault.kind.value, str(fault)) if fault is not None else ("short", "it ended at once")
        self._log.set(TOPIC, state, f"failed, trying again every {MOST_S:.0f} s or sooner ({detail})")
        return self._backoff.failed(self._clock.now(), at_least_s)

    def _settle(self, began_at: float) -> bool:
        """Whether the watch has lasted; looked at whenever the server shows life, be it by a bookmark."""
        if self._clock.now() - began_at < SETTLED_S:
            return False
        self._backoff.succeeded()
        self._log.set(TOPIC, "ok", "runs", logging.INFO)
        return True
