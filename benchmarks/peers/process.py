"""Runs a runner in its own process and reads its results, and the memory it took."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.peers.child import Result
from benchmarks.peers.engines import Engine
from benchmarks.peers.install import PeerError, last_line

_SAMPLE_S = 0.5
_DROPPED = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "OMP_NUM_THREADS")


@dataclass(frozen=True, slots=True)
class Measured:
    """One workload of one child process. peak_rss_bytes: of all its processes together, over its whole life."""

    result: Result
    peak_rss_bytes: int


class _PeakMemory:
    """The largest sum of the resident sets of a process and its children, looked at twice a second."""

    def __init__(self, pid: int) -> None:
        self._root = psutil.Process(pid)
        self._peak = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> int:
        """Bytes."""
        self._ended.set()
        self._thread.join()
        return self._peak

    def _watch(self) -> None:
        while not self._ended.wait(_SAMPLE_S):
            try:
                family = (self._root, *self._root.children(recursive=True))
                self._peak = max(self._peak, sum(process.memory_info().rss for process in family))
            except psutil.Error:
                continue  # one ended between the list and the look


def run_child(
    engine: Engine, python: Path, model: Path, workloads: list[Path], threads: int, limit_s: float
) -> list[Measured]:
    """One result a workload. Raises PeerError when the process fails or takes longer than `limit_s`."""
    command = [str(python), "-m", f"peers.{engine.runner}", "--model", str(model), "--threads", str(threads)]
    environment = {name: value for name, value in os.environ.items() if name not in _DROPPED}
    environment.update(engine.variables)
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            [*command, *map(str, workloads)],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=environment,
            cwd=Path(__file__).parents[1],
            start_new_session=True,
        )
        memory = _PeakMemory(process.pid)
        try:
            output, _ = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            raise PeerError(f"no result after {limit_s:.0f} s") from None
        finally:
            peak = memory.stop()
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        errors.seek(0)
        if process.returncode:
            raise PeerError(last_line(errors.read()) or f"exit code {process.returncode}")
    results = [Result(**json.loads(line)) for line in output.splitlines()]
    return [Measured(result, peak) for result in results]
