"""Follows one RPC from arrival to its end, for metrics and trace alike."""

from __future__ import annotations

import logging
import time
from dataclasses import replace

from weir.engine.request import Admitted, Delta, Done, Event, Failed, GenerateRequest, Preempted
from weir.telemetry.outcome import Outcome
from weir.telemetry.request_metrics import RequestMetrics
from weir.telemetry.request_trace import RequestTrace
from weir.telemetry.tracing import Tracing

logger = logging.getLogger(__name__)


class RequestTelemetry:
    """The server's RequestObserver. A few microseconds an event; everything costly happens on the exporter thread."""

    def __init__(self, metrics: RequestMetrics, tracing: Tracing, trace: RequestTrace, content: bool) -> None:
        self._metrics = metrics
        self._tracing = tracing
        self._trace = trace
        self._content = content
        # Only the id of a trace that was kept is worth following from a graph.
        kept = tracing.active and trace.context.trace_flags.sampled
        self._trace_id = f"{trace.context.trace_id:032x}" if kept else None
        self._tenant = metrics.tenant("")
        self._started = time.monotonic()
        self._admitted: float | None = None
        self._first_token: float | None = None
        self._last_token: dict[int, float] = {}
        metrics.active += 1

    def submitted(self, request: GenerateRequest) -> None:
        """The request is valid, tokenised and about to be queued."""
        self._trace.request = request
        self._tenant = self._metrics.tenant(request.tenant)
        self._trace.submitted_ns = self._tracing.clock.now_ns()

    def queued(self, engine_id: str) -> None:
        """The engine has taken it, under this id: it is what steps call the request."""
        request = self._trace.request
        if request is not None:
            self._trace.request = replace(request, request_id=engine_id)
            self._tracing.request_submitted(self._trace)

    def event(self, event: Event) -> None:
        """The engine sent an event."""
        match event:
            case Delta():
                self._delta(event)
            case Admitted():
                self._admit(event)
            case Preempted():
                self._trace.preempted(self._tracing.clock.now_ns())
            case Done() | Failed():
                pass  # `finished` says how it ended

    def _admit(self, event: Admitted) -> None:
        if self._admitted is not None:
            return
        # The event leaves the engine with the step that follows admission: its own `queue_s` is the exact time.
        submitted_ns = self._trace.submitted_ns or self._trace.started_ns
        self._trace.admitted_ns = min(submitted_ns + int(event.queue_s * 1e9), self._tracing.clock.now_ns())
        self._trace.cached_tokens = event.cached_tokens
        queue_s = (self._trace.admitted_ns - self._trace.started_ns) * 1e-9
        self._admitted = self._started + queue_s
        metrics = self._metrics
        metrics.admitted.add()
        metrics.tenant_requests[self._tenant].add()
        metrics.tenant_prompt_tokens[self._tenant].add(event.prompt_tokens)
        metrics.prompt_tokens.add(event.prompt_tokens)
        metrics.prefix_query_tokens.add(event.prompt_tokens)
        metrics.prefix_hit_tokens.add(event.cached_tokens)
        metrics.prompt_length.observe(event.prompt_tokens)
        metrics.queue.observe(queue_s, trace_id=self._trace_id)

    def _delta(self, event: Delta) -> None:
        now, count = time.monotonic(), len(event.token_ids)
        if count:
            last = self._last_token.get(event.choice)
            if self._first_token is None:
                self._first_token = now
                self._trace.first_token_ns = self._tracing.clock.now_ns()
                self._metrics.time_to_first_token.observe(now - self._started, trace_id=self._trace_id)
            elif last is not None:
                self._metrics.inter_token.observe((now - last) / count, count, self._trace_id)
            self._last_token[event.choice] = now
            self._metrics.output_tokens.add(count)
            self._metrics.tenant_output_tokens[self._tenant].add(count)
            self._trace.output_tokens += count
        if event.finish is not None:
            reason = event.finish.reason.value
            self._trace.finish_reasons.append(reason)
            self._metrics.finished_choices[reason].add()
        if self._content and event.text:
            self._trace.wrote(event.choice, event.text)

    def finished(self, code: str, error: BaseException | None) -> None:
        """The RPC ended with this gRPC status; called once, last."""
        outcome = Outcome(code, error)
        self._trace.outcome = outcome
        self._trace.finished_ns = self._tracing.clock.now_ns()
        duration_s = time.monotonic() - self._started
        metrics = self._metrics
        metrics.active -= 1
        admitted = self._admitted is not None
        metrics.ended(outcome, self._state(), admitted, duration_s, self._trace_id)
        if admitted:
            metrics.output_length.observe(self._trace.output_tokens)
        if outcome.ok:
            self._observe_latencies()
        self._tracing.request_finished(self._trace)
        logger.debug("request finished", extra={"method": self._trace.method, "status": code, "duration_s": duration_s})

    def _state(self) -> str:
        if self._admitted is None:
            return "queued"
        return "prefill" if self._first_token is None else "decode"

    def _observe_latencies(self) -> None:
        if self._admitted is None or self._first_token is None:
            return
        last = max(self._last_token.values())
        metrics, trace_id = self._metrics, self._trace_id
        metrics.prefill.observe(self._first_token - self._admitted, trace_id=trace_id)
        metrics.decode.observe(last - self._first_token, trace_id=trace_id)
        metrics.inference.observe(last - self._admitted, trace_id=trace_id)
        choices = len(self._last_token)
        later_tokens = self._trace.output_tokens - choices
        if later_tokens > 0:
            each_s = (last - self._first_token) * choices / later_tokens
            metrics.time_per_output_token.observe(each_s, trace_id=trace_id)
