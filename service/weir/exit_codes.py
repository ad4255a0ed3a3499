"""Exit codes of `weir` commands."""

from __future__ import annotations

OK = 0
# The server, the engine or the work itself failed.
FAILED = 1
# A wrong flag or setting, or a request that can never succeed: trying again will not help.
WRONG_USAGE = 2
# Not now: over budget, loading, draining, unreachable, or out of time.
TRY_LATER = 3
# As a shell reports Ctrl-C.
INTERRUPTED = 130
