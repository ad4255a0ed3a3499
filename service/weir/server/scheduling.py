"""Which of the server's threads may interrupt which: Linux's SCHED_BATCH, where there is one."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator


@contextlib.contextmanager
def patient_threads() -> Iterator[None]:
    """Threads that are started in this block, and those that they start, wait until a core is free when they wake.

    gRPC has a thread that tells the event loop of each message sent. Woken for every token of every stream, it would
    take the core from the loop in the middle of a step's messages; a patient one tells of all of them at once, after
    the last. Without SCHED_BATCH, or the right to use it, nothing changes.
    """
    try:
        before = os.sched_getscheduler(0)
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    except (AttributeError, OSError):
        yield
        return
    try:
        yield
    finally:
        os.sched_setscheduler(0, before, os.sched_param(0))
