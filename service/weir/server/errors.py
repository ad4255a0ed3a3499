"""From an exception to the gRPC status that a client sees: code, google.rpc details, and when to retry."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.rpc import code_pb2, error_details_pb2
from google.rpc.status_pb2 import Status

from weir.engine.errors import (
    AnswerTooLargeError,
    CancelledError,
    DeadlineError,
    EngineFailedError,
    InvalidRequestError,
    QueueFullError,
    SlowReaderError,
    UnavailableError,
    Violation,
)

DETAILS_KEY = "grpc-status-details-bin"
PUSHBACK_KEY = "grpc-retry-pushback-ms"
DOMAIN = "weir.v1.InferenceService"
NEVER_RETRY_MS = -1
# Another replica can answer at once, and this one comes back after a restart.
ENGINE_FAILED_RETRY_S = 1.0
# All trailers of a call share HTTP/2's header limit, 8 KiB by default. The message takes up to three times its bytes
# (percent-encoding) and is in the details again; those grow by a third (base64). Together they stay below 5 KiB.
MAX_MESSAGE_BYTES = 400
MAX_VIOLATION_BYTES = 200
MAX_VIOLATIONS_BYTES = 1600


class StatusError(Exception):
    """A call failed for a reason that is no request's: an unknown health service, a wrong state for an operation."""

    def __init__(
        self, code: grpc.StatusCode, message: str, reason: str | None = None, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True)
class ErrorStatus:
    """The end of a failed call, ready to be sent."""

    code: grpc.StatusCode
    message: str
    trailers: tuple[tuple[str, str | bytes], ...] = ()


def status_of(error: BaseException) -> ErrorStatus:
    """The status for an error; one branch for each row of the error table. Unknown errors are INTERNAL, and mute."""
    match error:
        case QueueFullError():
            return _budget_exhausted(error)
        case InvalidRequestError():
            return _invalid(error)
        case UnavailableError():
            return _status(
                grpc.StatusCode.UNAVAILABLE,
                str(error),
                [_error_info(error.reason), _retry_info(error.retry_after_s)],
                _milliseconds(error.retry_after_s),
            )
        case EngineFailedError():
            return _status(
                grpc.StatusCode.UNAVAILABLE,
                str(error),
                [_error_info("ENGINE_FAILED")],
                _milliseconds(ENGINE_FAILED_RETRY_S),
            )
        case DeadlineError():
            return _deadline(error)
        case CancelledError():
            return _status(grpc.StatusCode.CANCELLED, str(error), [_error_info("CANCELLED")], NEVER_RETRY_MS)
        case SlowReaderError():
            info = _error_info("CLIENT_TOO_SLOW", held_bytes=error.held_bytes)
            return _status(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error), [info], NEVER_RETRY_MS)
        case AnswerTooLargeError():
            info = _error_info(
                "ANSWER_TOO_LARGE", answer_bytes=error.answer_bytes, max_message_bytes=error.max_message_bytes
            )
            return _status(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error), [info], NEVER_RETRY_MS)
        case StatusError():
            return _other(error)
        case _:
            message = "internal error; the server's log has the details"
            return _status(grpc.StatusCode.INTERNAL, message, [_error_info("INTERNAL")], NEVER_RETRY_MS)


def _budget_exhausted(error: QueueFullError) -> ErrorStatus:
    info = _error_info(
        "KV_BUDGET_EXHAUSTED",
        needed_tokens=error.needed_tokens,
        free_tokens=error.free_tokens,
        queued_tokens=error.queued_tokens,
        queued_requests=error.queued_requests,
    )
    quota = error_details_pb2.QuotaFailure(
        violations=[error_details_pb2.QuotaFailure.Violation(subject=_cut(error.subject), description=_cut(str(error)))]
    )
    return _status(
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        str(error),
        [info, _retry_info(error.retry_after_s), quota],
        _milliseconds(error.retry_after_s),
    )


def _invalid(error: InvalidRequestError) -> ErrorStatus:
    bad_request = error_details_pb2.BadRequest(field_violations=_bounded(error.violations))
    return _status(grpc.StatusCode.INVALID_ARGUMENT, str(error), [bad_request], NEVER_RETRY_MS)


def _other(error: StatusError) -> ErrorStatus:
    details: list[Message] = [] if error.reason is None else [_error_info(error.reason)]
    if error.retry_after_s is None:
        return _status(error.code, str(error), details, NEVER_RETRY_MS)
    details.append(_retry_info(error.retry_after_s))
    return _status(error.code, str(error), details, _milliseconds(error.retry_after_s))


def _deadline(error: DeadlineError) -> ErrorStatus:
    info = _error_info(
        "DEADLINE_IN_QUEUE" if error.in_queue else "DEADLINE_EXCEEDED",
        waited_s=f"{error.waited_s:.3f}",
        estimated_wait_s=f"{error.estimated_wait_s:.3f}",
    )
    return _status(grpc.StatusCode.DEADLINE_EXCEEDED, str(error), [info], NEVER_RETRY_MS)


def _bounded(violations: Iterable[Violation]) -> list[error_details_pb2.BadRequest.FieldViolation]:
    """As many violations as the trailers hold; a thousand bad token ids must not make the answer undeliverable."""
    kept: list[error_details_pb2.BadRequest.FieldViolation] = []
    size = 0
    for violation in violations:
        item = error_details_pb2.BadRequest.FieldViolation(
            field=_cut(violation.field), description=_cut(violation.description)
        )
        size += item.ByteSize()
        if size > MAX_VIOLATIONS_BYTES:
            break
        kept.append(item)
    return kept


def _error_info(reason: str, **metadata: object) -> error_details_pb2.ErrorInfo:
    return error_details_pb2.ErrorInfo(
        reason=reason, domain=DOMAIN, metadata={key: str(value) for key, value in metadata.items()}
    )


def _retry_info(seconds: float) -> error_details_pb2.RetryInfo:
    delay = Duration()
    delay.FromMilliseconds(_milliseconds(seconds))
    return error_details_pb2.RetryInfo(retry_delay=delay)


def _milliseconds(seconds: float) -> int:
    """Rounded up, and at least 1: a client that obeys must never come back too early."""
    return max(1, math.ceil(seconds * 1000))


def _cut(text: str, max_bytes: int = MAX_VIOLATION_BYTES) -> str:
    """`text` within so many bytes of UTF-8. It may be a client's, and megabytes long."""
    encoded = text[:max_bytes].encode(errors="replace")
    if len(encoded) <= max_bytes and len(text) <= max_bytes:
        return text
    return encoded[: max_bytes - len("…".encode())].decode(errors="ignore") + "…"


def _status(code: grpc.StatusCode, message: str, details: list[Message], pushback_ms: int) -> ErrorStatus:
    message = _cut(message, MAX_MESSAGE_BYTES)
    packed = []
    for detail in details:
        item = AnyMessage()
        item.Pack(detail)
        packed.append(item)
    status = Status(code=getattr(code_pb2, code.name), message=message, details=packed)
    return ErrorStatus(code, message, ((DETAILS_KEY, status.SerializeToString()), (PUSHBACK_KEY, str(pushback_ms))))
