"""What a trace keeps of one request: written on the event loop, turned into spans on the exporter thread."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from opentelemetry.trace import Span, SpanContext

from weir.engine.request import GenerateRequest
from weir.telemetry.outcome import Outcome

MAX_PREEMPTED_EVENTS = 16
MAX_CONTENT_CHARS = 65536


class AnchoredClock:
    """The wall clock read once, then advanced by the monotonic clock: no span can end before it starts.

    Requests and steps share it, so that they lie beside each other whatever happens to the wall clock.
    """

    def __init__(self) -> None:
        self._offset_ns = time.time_ns() - time.monotonic_ns()

    def now_ns(self) -> int:
        """Nanoseconds since the epoch."""
        return self._offset_ns + time.monotonic_ns()

    def at_ns(self, monotonic_ns: int) -> int:
        """A moment of `time.monotonic_ns`, of any process of this machine, as nanoseconds since the epoch."""
        return self._offset_ns + monotonic_ns

    def behind_s(self) -> float:
        """How far the wall clock is ahead of this one by now: it was set, or ran faster."""
        return (time.time_ns() - self.now_ns()) / 1e9


@dataclass(slots=True, eq=False)
class RequestTrace:
    """Times (ns since the epoch, None: never happened) and facts of one RPC."""

    method: str
    span: Span
    started_ns: int
    submitted_ns: int | None = None
    admitted_ns: int | None = None
    first_token_ns: int | None = None
    finished_ns: int | None = None
    request: GenerateRequest | None = None
    preempted_ns: list[int] = field(default_factory=list)
    preemptions: int = 0
    output_tokens: int = 0
    cached_tokens: int | None = None
    finish_reasons: list[str] = field(default_factory=list)
    output: list[tuple[int, str]] = field(default_factory=list)
    output_chars: int = 0
    outcome: Outcome | None = None

    @property
    def context(self) -> SpanContext:
        """The identity of the request's span."""
        return self.span.get_span_context()

    def preempted(self, now_ns: int) -> None:
        """The request gave its blocks back."""
        self.preemptions += 1
        if len(self.preempted_ns) < MAX_PREEMPTED_EVENTS:
            self.preempted_ns.append(now_ns)

    def wrote(self, choice: int, text: str) -> None:
        """Keep output text, up to a bound."""
        room = MAX_CONTENT_CHARS - self.output_chars
        if room > 0:
            self.output.append((choice, text[:room]))
            self.output_chars += min(len(text), room)
