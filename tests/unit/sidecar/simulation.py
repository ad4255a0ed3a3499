"""Simulated time: hours of many sidecars in seconds, with the threads they really have.

Time stands still while any thread of it runs, and jumps to the next moment anybody waits for when all of them wait.
"""

from __future__ import annotations

import heapq
import itertools
import random
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from weir.sidecar.app import DELETION_COST, Sidecar
from weir.sidecar.connection import Answer, Request
from weir.sidecar.engine_link import EngineLink, EngineView
from weir.sidecar.metrics import SidecarMetrics
from weir.sidecar.settings import PodIdentity, SidecarSettings

from tests.unit.sidecar.api_server import IDENTITY, ApiServer, HangError

CONNECT_TIMEOUT_S = 3.0


class _Over(BaseException):
    """The simulation is over; ends the threads in it."""


@dataclass(order=True)
class _Sleeper:
    at: float
    number: int
    inbox: VirtualInbox = field(compare=False)
    gate: threading.Lock = field(compare=False, default_factory=threading.Lock)
    is_woken: bool = field(compare=False, default=False)


class VirtualInbox:
    """An inbox of one thread."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self.messages: deque[str] = deque()
        self.sleeper: _Sleeper | None = None

    def put(self, message: str) -> None:
        self._clock.deliver(self, message)

    def get(self, timeout_s: float) -> str | None:
        return self._clock.receive(self, timeout_s)


class VirtualClock:
    """The time, the threads that live in it, and what went wrong in them. The test's own thread is one of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now = 0.0
        self._awake = 1
        self._sleepers: list[_Sleeper] = []
        self._numbers = itertools.count()
        self._is_over = False
        self.failures: list[BaseException] = []

    def now(self) -> float:
        return self._now

    def inbox(self) -> VirtualInbox:
        return VirtualInbox(self)

    def start(self, name: str, run: Callable[[], object]) -> None:
        def live() -> None:
            try:
                run()
            except _Over:
                pass
            except BaseException as error:
                self.failures.append(error)
            finally:
                with self._lock:
                    self._awake -= 1
                    self._advance()

        with self._lock:
            self._awake += 1
        threading.Thread(target=live, name=name, daemon=True).start()

    def pass_until(self, moment: float) -> None:
        """Let everybody else live until then."""
        self.inbox().get(moment - self._now)
        assert not self.failures, self.failures

    def deliver(self, inbox: VirtualInbox, message: str) -> None:
        with self._lock:
            inbox.messages.append(message)
            if inbox.sleeper is not None:
                self._wake(inbox.sleeper)

    def receive(self, inbox: VirtualInbox, timeout_s: float) -> str | None:
        with self._lock:
            if self._is_over:
                raise _Over
            if inbox.messages or timeout_s <= 0:
                return inbox.messages.popleft() if inbox.messages else None
            sleeper = _Sleeper(self._now + timeout_s, next(self._numbers), inbox)
            sleeper.gate.acquire()
            inbox.sleeper = sleeper
            heapq.heappush(self._sleepers, sleeper)
            self._awake -= 1
            self._advance()
        sleeper.gate.acquire()
        with self._lock:
            if self._is_over:
                raise _Over
            return inbox.messages.popleft() if inbox.messages else None

    def end(self) -> None:
        """End every thread."""
        with self._lock:
            self._is_over = True
            for sleeper in self._sleepers:
                if not sleeper.is_woken:
                    self._wake(sleeper)

    def _advance(self) -> None:
        while self._awake == 0 and self._sleepers:
            sleeper = heapq.heappop(self._sleepers)
            if not sleeper.is_woken:
                self._now = max(self._now, sleeper.at)
                self._wake(sleeper)

    def _wake(self, sleeper: _Sleeper) -> None:
        sleeper.is_woken = True
        sleeper.inbox.sleeper = None
        self._awake += 1
        sleeper.gate.release()


@contextmanager
def simulated() -> Iterator[VirtualClock]:
    """A clock whose threads end with the block."""
    clock = VirtualClock()
    try:
        yield clock
    finally:
        clock.end()


class Network:
    """What lies between the sidecars and the API server, and when each tried to get through."""

    def __init__(self) -> None:
        # None, or what happens instead of a connection: "refused" at once, or "silence" until a timeout.
        self.fault: str | None = None
        self.attempts: list[float] = []


@dataclass
class _Answer:
    status: int
    headers: dict[str, str]
    lines: Iterator[bytes]

    @property
    def data(self) -> bytes:
        return b"".join(self.lines)

    def __iter__(self) -> Iterator[bytes]:
        return self.lines

    def close(self) -> None:
        """Nothing is held."""


class InProcessConnection:
    """A pod's connection, without sockets."""

    def __init__(self, server: ApiServer, network: Network, token: str = "first") -> None:
        self._server = server
        self._network = network
        self._token = token

    def send(self, request: Request) -> Answer:
        clock = self._server.clock
        self._network.attempts.append(clock.now())
        if self._network.fault == "refused":
            raise ConnectionRefusedError
        if self._network.fault == "silence":
            clock.inbox().get(CONNECT_TIMEOUT_S)
            raise TimeoutError
        headers = {"Authorization": f"Bearer {self._token}", "User-Agent": "test/1"}
        headers |= {"Content-Type": request.content_type} if request.content_type else {}
        try:
            reply = self._server.handle(request.method, request.target, headers, request.body or b"")
        except HangError as hang:
            clock.inbox().get(min(hang.seconds, request.read_timeout_s))
            raise TimeoutError from None
        return _Answer(reply.status, reply.headers, reply.lines if reply.lines is not None else iter([reply.body]))

    def forget_token(self) -> None:
        """It is the same token again."""

    def reset(self) -> None:
        """There is nothing to reset."""


class Link(EngineLink):
    """An engine with so much to do as a test says."""

    def __init__(self, in_flight: Callable[[], int]) -> None:
        self._in_flight = in_flight

    def look(self) -> EngineView:
        return EngineView(self._in_flight(), 0, 1000, 0, 0.0)

    def close(self) -> None:
        """Nothing is open."""


class World:
    """One API server, the network before it, and sidecars with threads of their own."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.server = ApiServer(clock)
        self.network = Network()
        self.metrics = SidecarMetrics()

    def start(
        self,
        number: int = 0,
        in_flight: Callable[[], int] = lambda: 0,
        metrics: SidecarMetrics | None = None,
        **settings: object,
    ) -> Sidecar:
        identity = PodIdentity(f"weir-{number}", IDENTITY.namespace, f"uid-{number}")
        if number:
            self.server.add(identity)
        sidecar = Sidecar(
            SidecarSettings.model_validate(settings),
            identity,
            Link(in_flight),
            InProcessConnection(self.server, self.network),
            metrics or self.metrics,
            Path("/nonexistent/termination-log"),
            self.clock,
            random.Random(number).random,
        )
        self.clock.start(identity.name, sidecar.run)
        return sidecar

    def costs(self) -> list[str | None]:
        """The annotation of each pod."""
        pods = self.server.pods.values()
        return [pod.tree["metadata"].get("annotations", {}).get(DELETION_COST) for pod in pods]

    def busiest_second(self) -> int:
        """Most requests that arrived within any second."""
        moments = sorted(self.network.attempts)
        most = first = 0
        for last, moment in enumerate(moments):
            while moments[first] <= moment - 1.0:
                first += 1
            most = max(most, last - first + 1)
        return most
