"""From a failed gRPC call to its typed error: status, details and trailers, and what the caller knows besides."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Protocol

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2
from google.rpc.status_pb2 import Status

from weir.client.errors import (
    BudgetExhaustedError,
    ConnectionLostError,
    DeadlineError,
    EngineFailedError,
    Failure,
    InvalidRequestError,
    MessageTooLargeError,
    RequestCancelledError,
    ServerError,
    SlowReaderError,
    UnauthenticatedError,
    UnavailableError,
    Violation,
    WeirError,
)


class FailedCall(Protocol):
    """What grpc.RpcError and grpc.aio.AioRpcError have in common."""

    def code(self) -> grpc.StatusCode: ...
    def details(self) -> str | None: ...
    def trailing_metadata(self) -> Iterable[tuple[str, str | bytes]] | None: ...


@dataclass(frozen=True, slots=True)
class Sent:
    """What the caller of a failed call knows and its status does not say."""

    request_id: str | None = None
    timeout_s: float | None = None
    with_token: bool = False


def from_call(call: FailedCall, sent: Sent | None = None, *, answered: bool = False) -> WeirError:
    """The typed error for a failed call. `answered`: part of the answer had come."""
    sent = sent or Sent()
    failure = _decode(call)
    failure = replace(failure, request_id=failure.request_id or sent.request_id)
    match failure.code:
        case "INVALID_ARGUMENT":
            return InvalidRequestError(failure)
        case "RESOURCE_EXHAUSTED" if failure.reason == "KV_BUDGET_EXHAUSTED":
            return BudgetExhaustedError(failure)
        case "RESOURCE_EXHAUSTED" if failure.reason == "CLIENT_TOO_SLOW":
            return SlowReaderError(failure)
        case "RESOURCE_EXHAUSTED" if failure.reason == "ANSWER_TOO_LARGE" or "larger than max" in failure.message:
            return MessageTooLargeError(failure)
        case "UNAVAILABLE" if failure.reason == "ENGINE_FAILED":
            return EngineFailedError(failure)
        case "UNAVAILABLE" if failure.reason is None and answered:
            message = f"the connection was lost before the answer was complete: {failure.message}"
            return ConnectionLostError(replace(failure, message=message))
        case "UNAVAILABLE":
            return UnavailableError(failure)
        case "DEADLINE_EXCEEDED":
            return DeadlineError(replace(failure, message=_deadline(failure, sent)))
        case "PERMISSION_DENIED" if failure.reason == "TENANT_REFUSED":
            return UnauthenticatedError(failure)
        case "UNAUTHENTICATED" | "PERMISSION_DENIED":
            refused = "the token was refused" if sent.with_token else "a token is needed, and none was given"
            return UnauthenticatedError(replace(failure, message=f"{refused} ({failure.message})"))
        case "CANCELLED":
            return RequestCancelledError(failure)
        case _:
            return ServerError(failure)


def _deadline(failure: Failure, sent: Sent) -> str:
    """gRPC's own words say how the transport ended ("Stream removed"), not what happened."""
    if failure.reason is not None:
        return failure.message
    return "the deadline passed" if sent.timeout_s is None else f"the timeout of {sent.timeout_s:g} s passed"


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
