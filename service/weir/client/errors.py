"""Typed errors, made from a failed call's status, details and trailers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2
from google.rpc.status_pb2 import Status


@dataclass(frozen=True, slots=True)
class Violation:
    """One wrong field of a request (`params.top_p`), and what was wrong."""

    field: str
    description: str


@dataclass(frozen=True, slots=True)
class Failure:
    """What a failed call said, decoded.

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
    """A call failed. The subclass says how; the properties say what the server told."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(f"{failure.code}: {failure.message}")
        self.failure = failure

    @property
    def code(self) -> str:
        """Name of the gRPC status code, as in RESOURCE_EXHAUSTED."""
        return self.failure.code

    @property
    def message(self) -> str:
        """The server's explanation."""
        return self.failure.message

    @property
    def request_id(self) -> str | None:
        """The request's id, if the call got as far as having one."""
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
        return float(dict(self.failure.metadata).get(key, "0"))


class InvalidRequestError(WeirError):
    """The request can never succeed as it is."""

    @property
    def violations(self) -> tuple[Violation, ...]:
        """Every wrong field."""
        return self.failure.violations


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


class UnavailableError(WeirError):
    """No server took the call: `reason` is MODEL_LOADING or DRAINING, or None when none could be reached."""


class EngineFailedError(UnavailableError):
    """The engine died under the request; the server restarts."""


class DeadlineError(WeirError):
    """The timeout passed, or the server saw that it could not be met."""

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


class ServerError(WeirError):
    """Anything else: an error inside the server, or a call it does not know."""


class FailedCall(Protocol):
    """What grpc.RpcError and grpc.aio.AioRpcError have in common."""

    def code(self) -> grpc.StatusCode: ...
    def details(self) -> str | None: ...
    def trailing_metadata(self) -> Iterable[tuple[str, str | bytes]] | None: ...


def from_call(call: FailedCall) -> WeirError:
    """The typed error for a failed call."""
    failure = _decode(call)
    match failure.code:
        case "INVALID_ARGUMENT":
            return InvalidRequestError(failure)
        case "RESOURCE_EXHAUSTED" if failure.reason == "KV_BUDGET_EXHAUSTED":
            return BudgetExhaustedError(failure)
        case "RESOURCE_EXHAUSTED" if failure.reason == "ANSWER_TOO_LARGE" or "larger than max" in failure.message:
            return MessageTooLargeError(failure)
        case "UNAVAILABLE" if failure.reason == "ENGINE_FAILED":
            return EngineFailedError(failure)
        case "UNAVAILABLE":
            return UnavailableError(failure)
        case "DEADLINE_EXCEEDED":
            return DeadlineError(failure)
        case "CANCELLED":
            return RequestCancelledError(failure)
        case _:
            return ServerError(failure)


def _decode(call: FailedCall) -> Failure:
    trailers = dict(call.trailing_metadata() or ())
    info = error_details_pb2.ErrorInfo()
    bad_request = error_details_pb2.BadRequest()
    for detail in _status(trailers.get("grpc-status-details-bin")).details:
        # Unpack leaves its argument alone when the detail is of another kind.
        detail.Unpack(info)
        detail.Unpack(bad_request)
    request_id = trailers.get("x-request-id")
    return Failure(
        code=call.code().name,
        message=call.details() or "",
        request_id=request_id if isinstance(request_id, str) else None,
        reason=info.reason or None,
        metadata=tuple(info.metadata.items()),
        violations=tuple(Violation(v.field, v.description) for v in bad_request.field_violations),
        pushback_s=_pushback_s(trailers.get("grpc-retry-pushback-ms")),
    )


def _status(encoded: str | bytes | None) -> Status:
    try:
        return Status.FromString(encoded) if isinstance(encoded, bytes) else Status()
    except DecodeError:
        return Status()


def _pushback_s(value: str | bytes | None) -> float | None:
    """gRFC A6: a negative or unreadable pushback means that the call must not be retried."""
    try:
        milliseconds = int(value) if value is not None else -1
    except ValueError:
        return None
    return None if milliseconds < 0 else milliseconds / 1000
