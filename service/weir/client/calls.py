"""What every call of a client shares: who calls, its id, its attempts, and how its end is told."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable

from weir.client import checks
from weir.client.checks import Metadata
from weir.client.errors import WeirError
from weir.client.failures import FailedCall, Sent, from_call
from weir.client.retry import Attempts

REQUEST_ID_KEY = "x-request-id"

# The one place where a client waits by itself; whoever wonders why can listen.
_log = logging.getLogger("weir.client")


class Caller:
    """Who calls, and how often. Raises InvalidRequestError for what cannot be sent."""

    def __init__(self, tenant: str, token: str, max_attempts: int) -> None:
        found = []
        if checks.header("tenant", tenant):
            found.append(("x-tenant-id", tenant))
        if checks.header("token", token):
            found.append(("authorization", f"Bearer {token}"))
        self.metadata: Metadata = tuple(found)
        self._with_token = bool(token)
        self._max_attempts = checks.whole("max_attempts", max_attempts, at_least=1)

    def call(
        self, timeout_s: float | None = None, metadata: Iterable[tuple[str, str]] = (), request_id: str = ""
    ) -> Call:
        """A call about to be made. Raises InvalidRequestError for metadata or a timeout that gRPC cannot send."""
        timeout_s = checks.seconds("timeout_s", timeout_s)
        given = checks.metadata(metadata)
        own: Metadata = ()
        name = request_id or dict(given).get(REQUEST_ID_KEY)
        if not name:
            # An id made here names the call in every error, also when no server was reached.
            name = uuid.uuid4().hex
            own = ((REQUEST_ID_KEY, name),)
        return Call(
            (*self.metadata, *own, *given),
            Sent(name, timeout_s, self._with_token),
            Attempts(self._max_attempts, timeout_s),
        )


class Call:
    """One call, over all its attempts."""

    def __init__(self, metadata: Metadata, sent: Sent, attempts: Attempts) -> None:
        self.metadata = metadata
        self._sent = sent
        self._attempts = attempts

    @property
    def request_id(self) -> str | None:
        """The id that the call was sent with."""
        return self._sent.request_id

    def timeout_s(self) -> float | None:
        """What is left for the next attempt; None: no limit."""
        return self._attempts.timeout_s()

    def error(self, failed: FailedCall, *, answered: bool = False) -> WeirError:
        """The typed error of an attempt that failed."""
        return from_call(failed, self._sent, answered=answered)

    def pause_s(self, error: WeirError) -> float:
        """How long to wait before the next attempt. Raises `error` if there must be none."""
        pause_s = self._attempts.pause_s(error)
        _log.info("%s; trying again in %.1f s", error.message, pause_s)
        return pause_s
