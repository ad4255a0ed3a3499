"""The short way for step spans puts on the wire what the SDK's encoder would."""

from __future__ import annotations

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, TraceFlags, TraceState
from weir.telemetry.otlp_grpc import encode
from weir.telemetry.request_trace import AnchoredClock
from weir.telemetry.step_spans import StepSpans, step_sampler

from tests.unit.telemetry.factories import decode, prefill, step

RESOURCE = Resource({"service.name": "weir", "host.name": "pod-0"})
SCOPE = InstrumentationScope("weir", "1.2.3")


def step_spans(max_links: int = 128, phases: bool = False) -> StepSpans:
    spans = StepSpans(RESOURCE, SCOPE, step_sampler("always", 1, 0), max_links, phases, AnchoredClock())
    for number, request_id in enumerate(("a", "b", "c"), start=1):
        state = TraceState([("vendor", "x")]) if number == 1 else None
        context = SpanContext(number, number << 60, number == 2, TraceFlags(TraceFlags.SAMPLED), state)
        spans.request_submitted(request_id, context)
    return spans


def by_span_id(request: ExportTraceServiceRequest) -> dict[bytes, tuple[bytes, bytes, bytes]]:
    """Each span's deterministic bytes, with those of its resource and scope."""
    return {
        span.span_id: tuple(
            message.SerializeToString(deterministic=True) for message in (span, resource.resource, scope.scope)
        )  # type: ignore[misc]
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    }


def test_steps_of_every_kind_are_encoded_as_the_sdk_does() -> None:
    builder = step_spans(phases=True)
    records = [
        step(1, prefills=(prefill("a", 0, 40), prefill("stranger", 0, 3))),
        step(2, decodes=(decode("a"),), prefills=(prefill("b", 0, 8), prefill("c", 8, 8, choice=1))),
        step(3, decodes=(decode("a"), decode("b"), decode("c"), decode("c", choice=1))),
        step(4, decodes=(decode("a"), decode("b"))),
        step(5, decodes=(decode("a"),), prefills=(prefill("a", 4, 4, choice=1),)),
        step(6),
        step(7, prefills=tuple(prefill(f"r{i}", 0, 4) for i in range(40))),
    ]
    spans = [span for record in records for span in builder.spans(record)]
    assert len(spans) == 7 * 6
    assert by_span_id(encode(spans)) == by_span_id(encode_spans(spans))


def test_links_beyond_the_limit_are_left_out_of_both() -> None:
    spans = step_spans(max_links=1).spans(step(1, decodes=(decode("a"), decode("b"))))
    [span] = encode(spans).resource_spans[0].scope_spans[0].spans
    assert len(span.links) == 1
    assert by_span_id(encode(spans)) == by_span_id(encode_spans(spans))


def test_other_spans_go_through_the_sdk_alone_or_in_a_mix() -> None:
    context = SpanContext(7, 8, False, TraceFlags(TraceFlags.SAMPLED))
    request = ReadableSpan("queue", context=context, resource=RESOURCE, instrumentation_scope=SCOPE)
    mixed = [request, *step_spans().spans(step(1, decodes=(decode("a"),)))]
    assert by_span_id(encode([request])) == by_span_id(encode_spans([request]))
    assert by_span_id(encode(mixed)) == by_span_id(encode_spans(mixed))
    assert len(by_span_id(encode(mixed))) == 2
