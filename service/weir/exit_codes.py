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
# As a shell reports SIGPIPE: whoever read the output has seen enough.
OUTPUT_CLOSED = 141
# As a shell reports SIGTERM, for the commands that it does not ask to finish their work.
TERMINATED = 143
