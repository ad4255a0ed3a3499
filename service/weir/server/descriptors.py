"""File descriptors: as many as the system gives, and some that clients' connections cannot use up."""

from __future__ import annotations

import logging
import resource

# Pipes, event loops, model files, the trace file; and the connections of probes, scrapers and the sidecar.
KEPT_BACK = 256
FEWEST_CONNECTIONS = 16

_log = logging.getLogger(__name__)


def raise_limit() -> int:
    """Raise this process's limit on open files to the most it may have, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        return soft if soft != resource.RLIM_INFINITY else 2**20
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def connections_within(max_connections: int, descriptors: int) -> int:
    """How many connections clients may hold, so that probes, metrics and files find descriptors; warns when fewer."""
    allowed = min(max_connections, max(FEWEST_CONNECTIONS, descriptors - KEPT_BACK))
    if allowed < max_connections:
        _log.warning(
            "at most %d connections, not %d: this process may open %d files, and %d are kept back",
            *(allowed, max_connections, descriptors, KEPT_BACK),
        )
    return allowed
