"""A `weir serve` of its own on free loopback ports."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

_STOP_S = 30.0


@contextlib.contextmanager
def serving(model: Path, *flags: str) -> Iterator[str]:
    """Starts a server and yields HOST:PORT; the client waits until it is ready. Stopped, or killed, at the end."""
    target = f"127.0.0.1:{_free_port()}"
    command = [sys.executable, "-m", "weir.cli", "serve", "--model", str(model), "--log-level", "warning"]
    command += ["--host", "127.0.0.1", "--port", target.split(":")[1], "--admin-address", f"127.0.0.1:{_free_port()}"]
    command += ["--metrics-host", "127.0.0.1", "--metrics-port", "0", *flags]
    process = subprocess.Popen(command)
    try:
        yield target
    finally:
        process.terminate()
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
