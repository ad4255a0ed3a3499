"""Every way a request can fail, as one exception class each; the server maps a class to one gRPC status."""

from __future__ import annotations

from dataclasses import dataclass


class RequestError(Exception):
    """A request failed; nothing else did."""

    def __reduce__(self) -> tuple[object, ...]:
        # Errors cross the process boundary: rebuild from fields, as dataclass exceptions keep no args.
        return type(self), tuple(getattr(self, name) for name in self.__dataclass_fields__)  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True)
class Violation:
    """One wrong field: its name in the API (`params.top_p`) and what was wrong and what is allowed."""

    field: str
    description: str


@dataclass(eq=False)
class InvalidRequestError(RequestError):
    """The request can never succeed as it is: bad field, empty or over-long prompt, more KV than the pool holds."""

    violations: tuple[Violation, ...]

    def __str__(self) -> str:
        return "; ".join(f"{v.field}: {v.description}" for v in self.violations)


@dataclass(eq=False)
class QueueFullError(RequestError):
    """The queue is at its bound in requests or tokens (of the server, or of this tenant); try again later."""

    needed_tokens: int
    free_tokens: int
    queued_tokens: int
    queued_requests: int
    retry_after_s: float
    subject: str = "queue"

    def __str__(self) -> str:
        return (
            f"{self.subject} is full: {self.queued_requests} requests with {self.queued_tokens} tokens wait, "
            f"{self.free_tokens} KV tokens are free and this request needs {self.needed_tokens}; "
            f"retry in {self.retry_after_s:.1f} s"
        )


@dataclass(eq=False)
class DeadlineError(RequestError):
    """The deadline passed, or cannot be met at the measured rate. `in_queue`: no token was computed."""

    waited_s: float
    in_queue: bool
    estimated_wait_s: float = 0.0

    def __str__(self) -> str:
        if self.in_queue:
            return f"deadline not met: {self.waited_s:.3f} s in the queue, {self.estimated_wait_s:.3f} s more expected"
        return f"deadline not met after {self.waited_s:.3f} s"


@dataclass(eq=False)
class CancelledError(RequestError):
    """The client cancelled, closed its connection, or called Cancel."""

    reason: str = "cancelled by the client"

    def __str__(self) -> str:
        return self.reason


@dataclass(eq=False)
class UnavailableError(RequestError):
    """The server takes no new work now. `reason` is MODEL_LOADING, DRAINING, ENGINE_STALLED or OUTPUT_BUFFER_FULL."""

    reason: str
    retry_after_s: float

    def __str__(self) -> str:
        return f"{self.reason.lower().replace('_', ' ')}; retry in {self.retry_after_s:.1f} s"


@dataclass(eq=False)
class EngineFailedError(RequestError):
    """The engine process died; every request in it failed and the server will exit."""

    detail: str

    def __str__(self) -> str:
        return f"the engine failed: {self.detail}"


@dataclass(eq=False)
class SlowReaderError(RequestError):
    """The client does not take its answer. `held_bytes` wait for it, and that is too much or has been for too long."""

    why: str
    held_bytes: int

    def __str__(self) -> str:
        return f"the client is too slow: {self.why}; {self.held_bytes} bytes of output wait for it"


@dataclass(eq=False)
class AnswerTooLargeError(RequestError):
    """The answer does not fit into one message; a stream would have carried it."""

    answer_bytes: int
    max_message_bytes: int

    def __str__(self) -> str:
        return (
            f"the answer has at least {self.answer_bytes} bytes and a message holds {self.max_message_bytes}; "
            "ask for less, or use Generate"
        )


@dataclass(eq=False)
class WrongSettingsError(EngineFailedError):
    """The engine cannot start with these settings or this model, however often it is tried."""

    def __str__(self) -> str:
        return self.detail
