"""How OpenMP's threads wait between steps. Said in the environment, because the runtime reads it when torch loads."""

from __future__ import annotations

import os


def sleep_between_steps() -> None:
    """Let compute threads sleep when a step is over: by default they spin on cores that others need.

    Call it before torch is imported in this process, or before a process that will import it is started. A setting
    that is there already stays.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
