"""Inputs of one kind, one after the other, in this process or in one with limits."""

from __future__ import annotations

import collections
import random
import resource
import signal
import tempfile
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

MORE_BYTES = 512 * 2**20
"""Memory that a process may take beyond what it has before its first input."""
ONE_INPUT_S = 40.0
"""Time that one input may take, on a machine that is busy with something else."""


def target(kind: str, folder: Path) -> Any:
    """What takes inputs of a kind: `once(dice)` says how one ended, and raises for what must not be."""
    if kind in ("Requests", "Metadata", "Generations"):
        from tests.fuzz import calls

        return getattr(calls, kind)(folder)
    from tests.fuzz import model_files

    return getattr(model_files, kind)(folder)


def run(kind: str, seed: int, first: int, count: int, findings: Connection | None = None) -> dict[str, int]:
    """How often inputs of a kind ended how. Findings are sent as (number, text), and raised without a pipe for them."""
    ends: collections.Counter[str] = collections.Counter()
    with tempfile.TemporaryDirectory() as folder:
        inputs = target(kind, Path(folder))
        for number in range(first, first + count):
            signal.setitimer(signal.ITIMER_REAL, ONE_INPUT_S)
            try:
                ends[inputs.once(random.Random(f"{seed}/{kind}/{number}"))] += 1
            except Exception:
                if findings is None:
                    raise
                findings.send((number, traceback.format_exc()))
                ends["FOUND"] += 1
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        if hasattr(inputs, "close"):
            inputs.close()
    return dict(ends)


def run_limited(kind: str, seed: int, first: int, count: int, findings: Connection) -> None:
    """The same in a process of its own, within bounds. The last thing sent is how often inputs ended how."""
    import torch

    torch.set_num_threads(1)
    signal.signal(signal.SIGALRM, _too_long)
    if kind not in (
        "Requests",
        "Metadata",
        "Generations",
    ):  # these have limits inside, and reserve addresses for threads
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + MORE_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    before = _peak_bytes()
    ends = run(kind, seed, first, count, findings)
    if (grown := _peak_bytes() - before) > MORE_BYTES:
        findings.send((first, f"the process grew by {grown} bytes"))
    findings.send(ends)


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _too_long(*_: object) -> None:
    raise TimeoutError(f"one input took more than {ONE_INPUT_S} s")
