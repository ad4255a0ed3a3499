"""SIGTERM and SIGINT as what they ask of a server: the first to drain, the second to end."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopSignals:
    """Takes the signals from when it is made, and keeps those that come before there is somebody to tell.

    asked_twice: called for the second signal.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, asked_twice: Callable[[], None] = lambda: None) -> None:
        self._received = 0
        self._asked_twice = asked_twice
        self._tell: Callable[[], None] | None = None
        for number in STOP_SIGNALS:
            loop.add_signal_handler(number, self._receive)

    def tell(self, stop: Callable[[], None]) -> None:
        """Call `stop` on the event loop for each signal, and now for each that has come."""
        self._tell = stop
        for _ in range(self._received):
            stop()

    def _receive(self) -> None:
        self._received += 1
        if self._received == 2:
            self._asked_twice()
        if self._tell is not None:
            self._tell()


def end_within(seconds: float, exit_code: int) -> None:
    """End the process after so long, whatever its threads still do: the interpreter would wait for each of them."""
    timer = threading.Timer(seconds, os._exit, (exit_code,))
    timer.daemon = True
    timer.start()
