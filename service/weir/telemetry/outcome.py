"""How an RPC ended: one value that the metrics, the span and the log line all read."""

from __future__ import annotations

from dataclasses import dataclass

from weir.engine.errors import (
    CancelledError,
    DeadlineError,
    EngineFailedError,
    InvalidRequestError,
    QueueFullError,
    RequestError,
    SlowReaderError,
    UnavailableError,
)

# google.rpc.Code, in order of its numbers: the closed set of the `status` label.
STATUS_CODES = (
    "OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS",
    "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED",
    "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED",
)  # fmt: skip

# Codes that are the server's fault (OpenTelemetry RPC conventions); the others leave the span's status unset.
SERVER_FAULTS = frozenset({"UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"})

# Why a request was not admitted: the closed set of the `reason` label.
REJECTIONS = (
    "queue_full", "tenant_quota", "invalid_request", "draining", "model_loading", "deadline", "cancelled",
    "engine_failed", "engine_stalled", "output_buffer_full", "slow_reader", "other",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Outcome:
    """The gRPC status name that the client got, and the error behind it (None for OK, or an error of no known kind)."""

    status: str
    error: BaseException | None = None

    @property
    def ok(self) -> bool:
        """Whether the client got everything."""
        return self.status == "OK"

    @property
    def error_type(self) -> str:
        """`error.type`: the class of the error, else the status."""
        return type(self.error).__name__ if isinstance(self.error, RequestError) else self.status

    @property
    def rejection(self) -> str:
        """The `reason` under which a request that was never admitted is counted."""
        match self.error:
            case QueueFullError(subject=subject):
                return "tenant_quota" if "tenant" in subject else "queue_full"
            case InvalidRequestError():
                return "invalid_request"
            case UnavailableError(reason="DRAINING"):
                return "draining"
            case UnavailableError(reason="MODEL_LOADING"):
                return "model_loading"
            case UnavailableError(reason="ENGINE_STALLED"):
                return "engine_stalled"
            case UnavailableError(reason="OUTPUT_BUFFER_FULL"):
                return "output_buffer_full"
            case SlowReaderError():
                return "slow_reader"
            case DeadlineError():
                return "deadline"
            case CancelledError():
                return "cancelled"
            case EngineFailedError():
                return "engine_failed"
        by_status = {"CANCELLED": "cancelled", "DEADLINE_EXCEEDED": "deadline", "INVALID_ARGUMENT": "invalid_request"}
        return by_status.get(self.status, "other")
