"""Typed errors: whatever goes wrong in a call, here or at the server, is one of these."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class Violation:
    """One wrong field of a request (`params.top_p`), and what was wrong."""

    field: str
    description: str


@dataclass(frozen=True, slots=True)
class Failure:
    """What went wrong, in plain values.

    `pushback_s` is when the server wants the call again; None: it does not.
    """

    code: str
    message: str
    request_id: str | None = None
    reason: str | None = None
    metadata: tuple[tuple[str, str], ...] = ()
    violations: tuple[Violation, ...] = ()
    pushback_s: float | None = None


class WeirError(Exception):
    """A call failed. The subclass says how; the properties say what is known about it."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(f"{failure.code}: {failure.message}")
        self.failure = failure

    def __reduce__(self) -> tuple[type[Self], tuple[Failure]]:
        """Errors cross process boundaries whole."""
        return type(self), (self.failure,)

    @property
    def code(self) -> str:
        """Name of the gRPC status code, as in RESOURCE_EXHAUSTED."""
        return self.failure.code

    @property
    def message(self) -> str:
        """What went wrong, as a sentence."""
        return self.failure.message

    @property
    def request_id(self) -> str | None:
        """The id of the request, as the server's logs and spans have it; None for what was never sent."""
        return self.failure.request_id

    @property
    def reason(self) -> str | None:
        """The machine-readable reason, as in KV_BUDGET_EXHAUSTED; None if the server gave none."""
        return self.failure.reason

    @property
    def retry_after_s(self) -> float | None:
        """Seconds after which the server wants the call again; None: it does not."""
        return self.failure.pushback_s

    def _number(self, key: str) -> float:
        """A number of the metadata; 0 when it is not there or is none."""
        try:
            value = float(dict(self.failure.metadata).get(key, "0"))
        except ValueError:
            return 0.0
        return value if math.isfinite(value) else 0.0


class InvalidRequestError(WeirError, ValueError):
    """The request can never succeed as it is: the server refused it, or it could not even be sent."""

    @classmethod
    def of(cls, violations: Sequence[Violation]) -> Self:
        """The error for what is found wrong before anything is sent."""
        message = "; ".join(f"{wrong.field}: {wrong.description}" for wrong in violations)
        return cls(Failure("INVALID_ARGUMENT", message, violations=tuple(violations)))

    @property
    def violations(self) -> tuple[Violation, ...]:
        """Every wrong field."""
        return self.failure.violations


class WrongTypeError(InvalidRequestError, TypeError):
    """A keyword that does not exist, or a value of a type that its field cannot hold."""


class UnauthenticatedError(WeirError):
    """The server, or something before it, wants another token or certificate."""


class ClientStateError(WeirError, RuntimeError):
    """The client was closed, or belongs to another event loop."""

    @classmethod
    def of(cls, message: str) -> Self:
        """The error for a call that was not made."""
        return cls(Failure("FAILED_PRECONDITION", message))


class BudgetExhaustedError(WeirError):
    """The queue is full now; try again after `retry_after_s`."""

    @property
    def needed_tokens(self) -> int:
        """KV tokens that the request needs at most."""
        return int(self._number("needed_tokens"))

    @property
    def free_tokens(self) -> int:
        """KV tokens that were free."""
        return int(self._number("free_tokens"))

    @property
    def queued_tokens(self) -> int:
        """Tokens that waited."""
        return int(self._number("queued_tokens"))

    @property
    def queued_requests(self) -> int:
        """Requests that waited."""
        return int(self._number("queued_requests"))


class MessageTooLargeError(WeirError):
    """The request or the answer is larger than one side's message limit; sending it again will not help."""


class SlowReaderError(WeirError):
    """The server gave the request up, because its output was taken too slowly; what came of it is right."""


class UnavailableError(WeirError):
    """No server took the call: `reason` says why, as in MODEL_LOADING or DRAINING; None: none could be reached."""


class ConnectionLostError(UnavailableError):
    """The connection ended before the answer was complete; what came of it is right."""


class EngineFailedError(UnavailableError):
    """The engine died under the request; the server restarts."""


class DeadlineError(WeirError, TimeoutError):
    """The timeout passed, or the server saw that it could not be met."""

    @classmethod
    def of_wait(cls, target: str, timeout_s: float, why: str) -> Self:
        """The error for a server that did not become ready in time."""
        return cls(Failure("DEADLINE_EXCEEDED", f"{target} was not ready within {timeout_s:g} s: {why}"))

    @property
    def in_queue(self) -> bool:
        """Whether the server refused the request without computing anything."""
        return self.failure.reason == "DEADLINE_IN_QUEUE"

    @property
    def estimated_wait_s(self) -> float:
        """How much longer the queue would have taken."""
        return self._number("estimated_wait_s")


class RequestCancelledError(WeirError):
    """The request was cancelled, here or by a Cancel call."""

    @classmethod
    def of_left_loop(cls, request_id: str | None) -> Self:
        """The error for a stream that is read on after a loop over it was left."""
        message = "leaving the loop over this stream cancelled it; next(stream) takes one delta and goes on"
        return cls(Failure("CANCELLED", message, request_id))

    @classmethod
    def of_closed_client(cls, request_id: str | None) -> Self:
        """The error for a call that its client's end took along."""
        return cls(Failure("CANCELLED", "the client was closed", request_id))


class ServerError(WeirError):
    """Anything else: an error inside the server, or a call it does not know."""
