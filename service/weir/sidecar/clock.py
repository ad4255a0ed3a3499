"""The time, threads, and waiting: the seam at which a simulation lets an hour pass in a second."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Protocol


class Inbox(Protocol):
    """Messages to one thread."""

    def put(self, message: str) -> None:
        """Leave a message. Never waits."""

    def get(self, timeout_s: float) -> str | None:
        """The next message; None when none comes in time."""


class Clock(Protocol):
    """Time in seconds that only goes forward, and threads that live in it."""

    def now(self) -> float:
        """Seconds from some moment on."""

    def inbox(self) -> Inbox:
        """A new, empty inbox."""

    def start(self, name: str, run: Callable[[], None]) -> None:
        """Run `run` in a thread that ends with the process."""


class QueueInbox:
    """An inbox on a queue and not on an event: a signal handler may put into it whatever its thread is doing."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[str] = queue.SimpleQueue()

    def put(self, message: str) -> None:
        """Leave a message."""
        self._queue.put(message)

    def get(self, timeout_s: float) -> str | None:
        """The next message; None when none comes in time."""
        try:
            return self._queue.get(timeout=max(0.0, timeout_s))
        except queue.Empty:
            return None


class SystemClock:
    """The machine's own time."""

    def now(self) -> float:
        """Seconds since some moment."""
        return time.monotonic()

    def inbox(self) -> Inbox:
        """A new, empty inbox."""
        return QueueInbox()

    def start(self, name: str, run: Callable[[], None]) -> None:
        """Run `run` in a daemon thread."""
        threading.Thread(target=run, name=name, daemon=True).start()
