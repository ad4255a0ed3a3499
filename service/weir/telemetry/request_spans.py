"""From a finished RequestTrace to the spans of the RPC, its queue, prefill and decode. Runs on the exporter thread."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.trace import Span, Status, StatusCode, Tracer, set_span_in_context
from opentelemetry.util.types import AttributeValue

from weir.engine.errors import RequestError
from weir.engine.request import GenerateRequest
from weir.telemetry import attributes as names
from weir.telemetry.outcome import SERVER_FAULTS, Outcome
from weir.telemetry.request_trace import RequestTrace
from weir.telemetry.step_span import RequestSteps

Decode = Callable[[Sequence[int]], str]


class EndedSpans(SpanProcessor):
    """Keeps the spans that ended until they are taken; both on the exporter thread."""

    def __init__(self) -> None:
        self._spans: list[ReadableSpan] = []

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Nothing to do: spans count when they end."""

    def on_end(self, span: ReadableSpan) -> None:
        """Keep it."""
        self._spans.append(span)

    def shutdown(self) -> None:
        """Nothing is held back."""

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """Nothing is held back."""
        return True

    def take(self) -> list[ReadableSpan]:
        """The spans that ended since the last call."""
        spans, self._spans = self._spans, []
        return spans


class RequestSpans:
    """Ends the span of an RPC with everything that is known of it.

    `decode` turns prompt token ids into text for the content attributes; None: no content.
    """

    def __init__(self, tracer: Tracer, ended: EndedSpans, model_name: str) -> None:
        self._tracer = tracer
        self._ended = ended
        self._model_name = model_name
        self.decode: Decode | None = None

    def spans(self, trace: RequestTrace, steps: RequestSteps | None) -> list[ReadableSpan]:
        """The finished span and its children. `steps`: which steps carried the request, None: unknown."""
        assert trace.finished_ns is not None
        assert trace.outcome is not None
        self._children(trace, trace.finished_ns)
        _add_events(trace, trace.finished_ns, trace.outcome)
        span = trace.span
        if trace.request is not None:
            span.set_attributes(_request_attributes(trace.request))
            span.set_attribute(names.GEN_AI_REQUEST_STREAM, not trace.method.endswith("/Complete"))
        span.set_attributes(_response_attributes(trace, self._model_name))
        if steps is not None and steps.count:
            span.set_attribute(names.REQUEST_FIRST_STEP, steps.first)
            span.set_attribute(names.REQUEST_LAST_STEP, steps.last)
            span.set_attribute(names.REQUEST_STEPS, steps.count)
        if self.decode is not None and trace.request is not None:
            span.set_attributes(_content(trace, trace.request, self.decode))
        _set_status(span, trace.outcome)
        span.end(trace.finished_ns)
        return self._ended.take()

    def _children(self, trace: RequestTrace, finished_ns: int) -> None:
        starts = (trace.submitted_ns, trace.admitted_ns, trace.first_token_ns)
        for name, start, end in zip(("queue", "prefill", "decode"), starts, (*starts[1:], None), strict=True):
            if start is not None:
                parent = set_span_in_context(trace.span, Context())
                self._tracer.start_span(name, context=parent, start_time=start).end(end or finished_ns)


def _add_events(trace: RequestTrace, finished_ns: int, outcome: Outcome) -> None:
    if trace.admitted_ns is not None:
        trace.span.add_event("admitted", timestamp=trace.admitted_ns)
    if trace.first_token_ns is not None:
        trace.span.add_event("first_token", timestamp=trace.first_token_ns)
    for preempted_ns in trace.preempted_ns:
        trace.span.add_event("preempted", timestamp=preempted_ns)
    trace.span.add_event("finished", {names.RPC_STATUS: outcome.status}, finished_ns)


def _request_attributes(request: GenerateRequest) -> dict[str, AttributeValue]:
    params = request.params
    found: dict[str, AttributeValue] = {
        names.REQUEST_PRIORITY: request.priority,
        names.GEN_AI_RESPONSE_ID: request.request_id,
        names.GEN_AI_REQUEST_MAX_TOKENS: params.max_tokens,
        names.GEN_AI_REQUEST_TEMPERATURE: params.temperature,
        names.GEN_AI_REQUEST_TOP_P: params.top_p,
        names.GEN_AI_REQUEST_TOP_K: params.top_k,
        names.GEN_AI_REQUEST_FREQUENCY_PENALTY: params.frequency_penalty,
        names.GEN_AI_REQUEST_PRESENCE_PENALTY: params.presence_penalty,
        names.GEN_AI_USAGE_INPUT_TOKENS: len(request.prompt_token_ids),
    }
    if params.seed is not None:
        found[names.GEN_AI_REQUEST_SEED] = params.seed
    if request.tenant:
        found[names.REQUEST_TENANT] = request.tenant
    if request.n != 1:
        found[names.GEN_AI_REQUEST_CHOICE_COUNT] = request.n
    return found


def _response_attributes(trace: RequestTrace, model_name: str) -> dict[str, AttributeValue]:
    found: dict[str, AttributeValue] = {names.GEN_AI_USAGE_OUTPUT_TOKENS: trace.output_tokens}
    if trace.admitted_ns is not None:
        found[names.GEN_AI_RESPONSE_MODEL] = model_name
    if trace.cached_tokens is not None:
        found[names.GEN_AI_USAGE_CACHED_TOKENS] = trace.cached_tokens
    if trace.first_token_ns is not None:
        found[names.GEN_AI_RESPONSE_TIME_TO_FIRST_CHUNK] = (trace.first_token_ns - trace.started_ns) * 1e-9
    if trace.finish_reasons:
        found[names.GEN_AI_RESPONSE_FINISH_REASONS] = trace.finish_reasons
    if trace.preemptions:
        found[names.REQUEST_PREEMPTIONS] = trace.preemptions
    return found


def _content(trace: RequestTrace, request: GenerateRequest, decode: Decode) -> dict[str, AttributeValue]:
    texts = [""] * request.n
    for choice, text in trace.output:
        texts[choice] += text
    prompt = [_message("user", decode(request.prompt_token_ids))]
    output = [_message("assistant", text) for text in texts]
    return {
        names.GEN_AI_INPUT_MESSAGES: json.dumps(prompt, ensure_ascii=False),
        names.GEN_AI_OUTPUT_MESSAGES: json.dumps(output, ensure_ascii=False),
        names.GEN_AI_REQUEST_STOP_SEQUENCES: request.params.stop,
    }


def _message(role: str, content: str) -> dict[str, object]:
    return {"role": role, "parts": [{"type": "text", "content": content}]}


def _set_status(span: Span, outcome: Outcome) -> None:
    span.set_attribute(names.RPC_STATUS, outcome.status)
    if outcome.ok:
        span.set_status(StatusCode.OK)
        return
    span.set_attribute(names.ERROR_TYPE, outcome.error_type)
    if outcome.status in SERVER_FAULTS:
        # The text of an unforeseen exception may hold anything, a prompt included; its type does not.
        known = isinstance(outcome.error, RequestError)
        span.set_status(Status(StatusCode.ERROR, str(outcome.error) if known else outcome.error_type))
