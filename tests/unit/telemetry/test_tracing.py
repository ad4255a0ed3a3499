"""What a collector receives over OTLP for steps and requests, however they end."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from weir.config import Settings, TelemetrySettings
from weir.engine.errors import (
    CancelledError,
    DeadlineError,
    EngineFailedError,
    InvalidRequestError,
    QueueFullError,
    RequestError,
    Violation,
)
from weir.engine.queue_gate import QueueGate
from weir.engine.records import QueueOutlook
from weir.engine.request import Preempted
from weir.engine.tenants import Tenant, Tenants
from weir.telemetry.request_observer import RequestTelemetry
from weir.telemetry.telemetry import Telemetry

from tests.unit.telemetry.factories import (
    COMPLETE,
    GENERATE,
    EngineStub,
    Received,
    admitted,
    attributes,
    decode,
    delta,
    done,
    engine_info,
    grpc_receiver,
    http_receiver,
    prefill,
    request,
    step,
)

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"


def telemetry_to(endpoint: str, **settings: object) -> Telemetry:
    chosen = TelemetrySettings.model_validate({"trace_endpoint": endpoint, **settings})
    return Telemetry(Settings(telemetry=chosen), "tiny")


@contextmanager
def traced(**settings: object) -> Iterator[tuple[Telemetry, Received]]:
    """A telemetry that exports to a collector in this process; everything has arrived when the block ends."""
    with grpc_receiver() as (endpoint, received):
        telemetry = telemetry_to(endpoint, **settings)
        telemetry.tracing.start()
        yield telemetry, received
        telemetry.tracing.shutdown()


def start(telemetry: Telemetry, metadata: Mapping[str, str] | None = None, method: str = GENERATE) -> RequestTelemetry:
    return telemetry.request_started(method, metadata or {})


def run_to_the_end(telemetry: Telemetry, request_id: str = "r1", metadata: Mapping[str, str] | None = None) -> None:
    """A prompt of 4 tokens in one chunk, then two decodes: 3 output tokens."""
    observer = start(telemetry, metadata)
    observer.submitted(request(request_id))
    observer.queued(request_id)
    telemetry.step(step(1, prefills=(prefill(request_id, 0, 4),)))
    observer.event(admitted(request_id))
    observer.event(delta(request_id))
    for number in (2, 3):
        telemetry.step(step(number, decodes=(decode(request_id),)))
        observer.event(delta(request_id, last=number == 3))
    observer.event(done(request_id, completion_tokens=3))
    observer.finished("OK", None)


def server_span(received: Received) -> Span:
    [span] = [span for span in received.spans if span.kind == Span.SPAN_KIND_SERVER]
    return span


def test_every_step_is_one_span_and_the_root_of_its_own_trace() -> None:
    with traced() as (telemetry, received):
        for number in range(1, 701):
            telemetry.step(step(number, decodes=(decode("a"),)))
    spans = received.named("engine.step")
    assert [attributes(span.attributes)["weir.step.number"] for span in spans] == list(range(1, 701))
    assert len({span.trace_id for span in spans}) == 700
    assert {span.parent_span_id for span in spans} == {b""}
    assert telemetry.metrics.traces.exported.value == 700


def test_a_step_span_says_what_the_step_did_and_what_the_budget_was() -> None:
    record = step(
        7,
        decodes=(decode("a"), decode("b")),
        prefills=(prefill("c", 32, 64, choice=1),),
        start_ns=time.monotonic_ns(),
        duration_ns=20_000_000,
    )
    began = time.time_ns()
    with traced() as (telemetry, received):
        telemetry.step(record)
    [span] = received.spans
    assert abs(span.start_time_unix_nano - began) < 1e8
    assert span.end_time_unix_nano - span.start_time_unix_nano == 20_000_000
    assert attributes(span.attributes) == {
        "weir.step.number": 7,
        "weir.step.kind": "mixed",
        "weir.step.decode_tokens": 2,
        "weir.step.prefill_tokens": 64,
        "weir.step.prefix_hit_tokens": 16,
        "weir.step.chunks": ["c[1] 32+64"],
        "weir.step.admitted": 0,
        "weir.step.finished": 0,
        "weir.step.preempted": 0,
        "weir.step.rejected": 2,
        "weir.running": 3,
        "weir.queued": 3,
        "weir.queued_tokens": 700,
        "weir.kv.total_tokens": 4096,
        "weir.kv.free_tokens": 3000,
        "weir.kv.used_tokens": 1000,
        "weir.kv.cached_tokens": 96,
        "weir.kv.reserved_peak_tokens": 2048,
        "weir.step.plan_s": 0.001,
        "weir.step.launch_s": 0.002,
        "weir.step.device_s": 0.014,
        "weir.step.collect_s": 0.0005,
        "weir.step.emit_s": 0.0025,
    }


@pytest.mark.parametrize("years", [10, -10])
def test_spans_of_requests_and_steps_stay_together_when_the_wall_clock_is_set(
    years: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    began = time.time_ns()
    with traced() as (telemetry, received):
        run_to_the_end(telemetry, "before")
        in_flight = start(telemetry)
        in_flight.submitted(request("during"))
        wall = time.time_ns
        monkeypatch.setattr(time, "time_ns", lambda: wall() + years * 365 * 86400 * 10**9)
        telemetry.step(step(4, decodes=(decode("during"),)))
        in_flight.event(admitted("during"))
        in_flight.finished("OK", None)
        run_to_the_end(telemetry, "after")
        run_to_the_end(telemetry, "later")
    times = [at for span in received.spans for at in (span.start_time_unix_nano, span.end_time_unix_nano)]
    times += [event.time_unix_nano for span in received.spans for event in span.events]
    assert len(received.spans) > 15
    assert all(abs(at - began) < 60e9 for at in times)
    told = [record.getMessage() for record in caplog.records if "wall clock" in record.getMessage()]
    assert len(told) == 1
    assert f"{years * 365 * 86400}" in told[0]


def test_the_chunk_list_of_a_step_is_bounded() -> None:
    with traced() as (telemetry, received):
        telemetry.step(step(prefills=tuple(prefill(f"r{i}", 0, 4) for i in range(40))))
    found = attributes(received.spans[0].attributes)
    assert len(found["weir.step.chunks"]) == 32
    assert found["weir.step.chunks_omitted"] == 8
    assert found["weir.step.prefill_tokens"] == 160


def test_steps_link_to_the_spans_of_the_requests_in_them_with_token_counts_that_add_up() -> None:
    with traced() as (telemetry, received):
        run_to_the_end(telemetry)
        telemetry.step(step(4, decodes=(decode("someone-else"),)))
    span = server_span(received)
    linked: dict[int, dict[str, object]] = {}
    for step_span in received.named("engine.step"):
        for link in step_span.links:
            assert (link.trace_id, link.span_id) == (span.trace_id, span.span_id)
            linked[attributes(step_span.attributes)["weir.step.number"]] = attributes(link.attributes)
    assert linked == {
        1: {"weir.step.prefill_tokens": 4},
        2: {"weir.step.decode_tokens": 1},
        3: {"weir.step.decode_tokens": 1},
    }
    found = attributes(span.attributes)
    assert (found["weir.request.first_step"], found["weir.request.last_step"], found["weir.request.steps"]) == (1, 3, 3)
    # 4 prompt tokens, and 3 sampled ones of which the last is never computed.
    assert (found["gen_ai.usage.input_tokens"], found["gen_ai.usage.output_tokens"]) == (4, 3)


def test_the_choices_of_one_request_share_one_link() -> None:
    with traced() as (telemetry, received):
        observer = start(telemetry)
        observer.submitted(request("r1", n=3))
        observer.queued("r1")
        telemetry.step(step(decodes=tuple(decode("r1", choice=choice) for choice in range(3))))
        observer.finished("OK", None)
    [link] = received.named("engine.step")[0].links
    assert attributes(link.attributes) == {"weir.step.decode_tokens": 3}


def test_steps_link_to_a_request_under_the_id_that_the_engine_gave_it() -> None:
    with traced() as (telemetry, received):
        observer = start(telemetry)
        observer.submitted(request("r1"))
        observer.queued("r1.2")
        telemetry.step(step(decodes=(decode("r1.2"),)))
        observer.finished("OK", None)
    [link] = received.named("engine.step")[0].links
    assert link.span_id == server_span(received).span_id
    assert attributes(server_span(received).attributes)["gen_ai.response.id"] == "r1.2"


def test_requests_of_one_name_link_to_the_steps_of_their_own() -> None:
    """Two tenants may use the same id at once."""
    with traced() as (telemetry, received):
        observers = {engine_id: start(telemetry) for engine_id in ("r1", "r1.2")}
        for engine_id, observer in observers.items():
            observer.submitted(request("r1"))
            observer.queued(engine_id)
        telemetry.step(step(1, decodes=(decode("r1"),)))
        telemetry.step(step(2, decodes=(decode("r1.2"),)))
        for observer in observers.values():
            observer.finished("OK", None)
    spans = {attributes(span.attributes)["gen_ai.response.id"]: span.span_id for span in received.named(GENERATE)}
    first, second = received.named("engine.step")
    assert [link.span_id for link in first.links] == [spans["r1"]]
    assert [link.span_id for link in second.links] == [spans["r1.2"]]


def test_a_step_that_was_running_when_its_request_was_cancelled_still_links_to_it() -> None:
    with traced() as (telemetry, received):
        observer = start(telemetry)
        observer.submitted(request("r1"))
        observer.queued("r1")
        observer.finished("CANCELLED", CancelledError())
        telemetry.step(step(decodes=(decode("r1"),)))
    [link] = received.named("engine.step")[0].links
    assert link.span_id == server_span(received).span_id


def test_links_beyond_the_limit_are_counted_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SPAN_LINK_COUNT_LIMIT", "2")
    with traced() as (telemetry, received):
        for request_id in ("a", "b", "c"):
            observer = start(telemetry)
            observer.submitted(request(request_id))
            observer.queued(request_id)
        telemetry.step(step(decodes=(decode("a"), decode("b"), decode("c"))))
    [span] = received.named("engine.step")
    assert len(span.links) == 2
    assert attributes(span.attributes)["weir.step.links_omitted"] == 1


def test_phases_become_children_that_fill_the_step_in_order() -> None:
    with traced(trace_phases=True) as (telemetry, received):
        telemetry.step(step(1, decodes=(decode("a"),), duration_ns=20_000_000))
    [parent] = received.named("engine.step")
    phases = [span for span in received.spans if span.parent_span_id]
    assert [span.name for span in phases] == [
        "engine.plan",
        "engine.launch",
        "engine.device",
        "engine.collect",
        "engine.emit",
    ]
    assert {(span.trace_id, span.parent_span_id) for span in phases} == {(parent.trace_id, parent.span_id)}
    assert phases[0].start_time_unix_nano == parent.start_time_unix_nano
    assert [span.end_time_unix_nano - parent.start_time_unix_nano for span in phases] == [
        1_000_000,
        3_000_000,
        17_000_000,
        17_500_000,
        20_000_000,
    ]


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({"trace_steps": "slow-only", "trace_slow_step_s": "100ms"}, [2]),
        ({"trace_steps": "never"}, []),
        ({"trace_steps": "ratio", "trace_step_ratio": 0}, []),
        ({"trace_steps": "ratio", "trace_step_ratio": 1}, [1, 2, 3]),
    ],
)
def test_step_sampling_keeps_what_it_says(settings: dict[str, object], kept: list[int]) -> None:
    with traced(**settings) as (telemetry, received):
        for number, milliseconds in ((1, 99), (2, 100), (3, 5)):
            telemetry.step(step(number, decodes=(decode("a"),), duration_ns=milliseconds * 1_000_000))
    assert [attributes(span.attributes)["weir.step.number"] for span in received.spans] == kept


def test_a_request_continues_the_trace_of_its_caller() -> None:
    metadata = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "vendor=opaque"}
    with traced() as (telemetry, received):
        run_to_the_end(telemetry, metadata=metadata)
    span = server_span(received)
    assert span.name == GENERATE
    assert (span.trace_id.hex(), span.parent_span_id.hex(), span.trace_state) == (TRACE, PARENT, "vendor=opaque")
    children = {child.name: child for child in received.spans if child.parent_span_id == span.span_id}
    assert set(children) == {"queue", "prefill", "decode"}
    assert {child.trace_id.hex() for child in children.values()} == {TRACE}


@pytest.mark.parametrize(
    "header",
    [
        "",
        "garbage",
        f"00-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"ff-{TRACE}-{PARENT}-01",
        f"00-{TRACE.upper()[:-1]}-{PARENT}-01",
    ],
)
def test_a_malformed_traceparent_starts_a_new_trace(header: str) -> None:
    with traced() as (telemetry, received):
        run_to_the_end(telemetry, metadata={"traceparent": header})
    span = server_span(received)
    assert span.parent_span_id == b""
    assert span.trace_id.hex() != TRACE


def test_a_request_that_the_caller_does_not_sample_has_no_span_and_no_link() -> None:
    with traced() as (telemetry, received):
        run_to_the_end(telemetry, metadata={"traceparent": f"00-{TRACE}-{PARENT}-00"})
    assert [span.name for span in received.spans] == ["engine.step"] * 3
    assert [len(span.links) for span in received.spans] == [0, 0, 0]


def test_the_parts_of_a_request_follow_each_other_and_end_by_now() -> None:
    with traced() as (telemetry, received):
        run_to_the_end(telemetry)
    span = server_span(received)
    parts = {found.name: found for found in received.spans if found.parent_span_id == span.span_id}
    moments = [
        span.start_time_unix_nano,
        parts["queue"].start_time_unix_nano,
        parts["queue"].end_time_unix_nano,
        parts["prefill"].end_time_unix_nano,
        parts["decode"].end_time_unix_nano,
        time.time_ns(),
    ]
    assert moments == sorted(moments)
    assert parts["prefill"].start_time_unix_nano == parts["queue"].end_time_unix_nano
    assert parts["decode"].start_time_unix_nano == parts["prefill"].end_time_unix_nano
    assert parts["decode"].end_time_unix_nano == span.end_time_unix_nano
    for found in received.spans:
        assert found.start_time_unix_nano <= found.end_time_unix_nano


def test_a_request_span_has_the_conventional_attributes_and_events() -> None:
    with traced() as (telemetry, received):
        run_to_the_end(telemetry)
    span = server_span(received)
    found = attributes(span.attributes)
    assert isinstance(found.pop("gen_ai.response.time_to_first_chunk"), float)
    assert found == {
        "rpc.system.name": "grpc",
        "rpc.method": GENERATE,
        "rpc.response.status_code": "OK",
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "weir",
        "gen_ai.request.model": "tiny",
        "gen_ai.request.stream": True,
        "gen_ai.request.max_tokens": 8,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 1.0,
        "gen_ai.request.top_k": 0,
        "gen_ai.request.seed": 7,
        "gen_ai.request.frequency_penalty": 0.0,
        "gen_ai.request.presence_penalty": 0.0,
        "gen_ai.response.id": "r1",
        "gen_ai.response.model": "tiny",
        "gen_ai.response.finish_reasons": ["length"],
        "gen_ai.usage.input_tokens": 4,
        "gen_ai.usage.output_tokens": 3,
        "gen_ai.usage.cache_read.input_tokens": 0,
        "weir.request.priority": 5,
        "weir.request.first_step": 1,
        "weir.request.last_step": 3,
        "weir.request.steps": 3,
    }
    assert [event.name for event in span.events] == ["admitted", "first_token", "finished"]
    assert span.status.code == Status.STATUS_CODE_OK


def refusal_of_a_full_queue(tenant_share: float) -> QueueFullError:
    """What the engine's own queue says when one request of `a` waits in a queue for 2 or, with half a share, for 1."""
    tenants = Tenants([Tenant("a", queue_share=tenant_share)])
    no_slot = 0
    gate = QueueGate(2 if tenant_share < 1 else 1, 1000, tenants, EngineStub().snapshot, QueueOutlook, no_slot)
    gate.reserve(10, "a")
    with pytest.raises(QueueFullError) as refused:
        gate.reserve(10, "a")
    return refused.value


QUEUE_FULL = QueueFullError(100, 0, 5000, 64, 2.0)


@pytest.mark.parametrize(
    ("code", "error", "status", "error_type"),
    [
        ("CANCELLED", CancelledError(), Status.STATUS_CODE_UNSET, "CancelledError"),
        ("DEADLINE_EXCEEDED", DeadlineError(1.0, in_queue=True), Status.STATUS_CODE_ERROR, "DeadlineError"),
        ("RESOURCE_EXHAUSTED", QUEUE_FULL, Status.STATUS_CODE_UNSET, "QueueFullError"),
        ("UNAVAILABLE", EngineFailedError("killed by signal 9"), Status.STATUS_CODE_ERROR, "EngineFailedError"),
        ("INTERNAL", KeyError("the prompt"), Status.STATUS_CODE_ERROR, "INTERNAL"),
    ],
)
def test_the_span_has_the_true_status_of_a_call_that_failed(
    code: str, error: BaseException, status: int, error_type: str
) -> None:
    with traced() as (telemetry, received):
        observer = start(telemetry)
        observer.submitted(request())
        observer.finished(code, error)
    span = server_span(received)
    found = attributes(span.attributes)
    assert (found["rpc.response.status_code"], found["error.type"]) == (code, error_type)
    assert span.status.code == status
    assert "prompt" not in span.status.message
    assert [child.name for child in received.spans if child.parent_span_id == span.span_id] == ["queue"]


def test_the_status_message_of_a_failed_engine_is_its_detail() -> None:
    with traced() as (telemetry, received):
        start(telemetry).finished("UNAVAILABLE", EngineFailedError("killed by signal 9"))
    assert server_span(received).status.message == "the engine failed: killed by signal 9"


def test_a_call_that_is_rejected_before_it_was_tokenised_has_a_span_without_parts() -> None:
    with traced() as (telemetry, received):
        start(telemetry, method=COMPLETE).finished("RESOURCE_EXHAUSTED", QUEUE_FULL)
    [span] = received.spans
    assert span.name == COMPLETE
    assert [event.name for event in span.events] == ["finished"]


def test_preemptions_are_counted_and_their_events_bounded() -> None:
    with traced() as (telemetry, received):
        observer = start(telemetry)
        observer.submitted(request())
        for _ in range(40):
            observer.event(Preempted("r1"))
        observer.finished("OK", None)
    span = server_span(received)
    assert attributes(span.attributes)["weir.request.preemptions"] == 40
    assert [event.name for event in span.events] == ["preempted"] * 16 + ["finished"]


def test_no_text_is_on_a_span_unless_asked_for() -> None:
    with traced() as (telemetry, received):
        telemetry.watch(EngineStub(), engine_info(), [b"a", b"b", b"c", b"d", b"e"])
        observer = start(telemetry)
        observer.submitted(request(prompt=(1, 2)))
        observer.event(delta(text="secret"))
        observer.finished("OK", None)
    assert b"secret" not in b"".join(item.SerializeToString() for item in received.requests)


def test_content_has_the_prompt_and_the_output_of_each_choice() -> None:
    with traced(trace_content=True) as (telemetry, received):
        telemetry.watch(EngineStub(), engine_info(), [b"a", b"b", b"\xc3", b"\xa9", b"e"])
        observer = start(telemetry)
        observer.submitted(request(prompt=(1, 2, 3), n=2))
        for choice, text in ((0, "on"), (1, "tw"), (0, "e"), (1, "o")):
            observer.event(delta(text=text, choice=choice))
        observer.finished("OK", None)
    found = attributes(server_span(received).attributes)
    assert found["gen_ai.input.messages"] == '[{"role": "user", "parts": [{"type": "text", "content": "bé"}]}]'
    assert found["gen_ai.output.messages"] == (
        '[{"role": "assistant", "parts": [{"type": "text", "content": "one"}]},'
        ' {"role": "assistant", "parts": [{"type": "text", "content": "two"}]}]'
    )


def test_spans_go_over_http_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20x")
    with http_receiver() as (endpoint, received):
        telemetry = telemetry_to(endpoint, trace_protocol="http/protobuf")
        telemetry.tracing.start()
        run_to_the_end(telemetry)
        telemetry.tracing.shutdown()
    assert len(received.named("engine.step")) == 3
    assert received.headers[0][":path"] == "/v1/traces"
    assert received.headers[0]["authorization"] == "Bearer x"


def test_the_standard_variables_name_the_endpoint_the_headers_and_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    with grpc_receiver() as (endpoint, received):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-team=inference")
        monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.name=chat,deployment.environment.name=test")
        telemetry = Telemetry(Settings(), "tiny")
        telemetry.tracing.start()
        telemetry.step(step(decodes=(decode("a"),)))
        telemetry.tracing.shutdown()
    assert received.headers[0]["x-team"] == "inference"
    resource = attributes(received.requests[0].resource_spans[0].resource.attributes)
    assert (resource["service.name"], resource["deployment.environment.name"]) == ("chat", "test")
    assert resource["service.version"]


def test_the_standard_sampler_decides_about_requests_and_not_about_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_always_off")
    with traced() as (telemetry, received):
        run_to_the_end(telemetry)
        run_to_the_end(telemetry, "r2", {"traceparent": f"00-{TRACE}-{PARENT}-01"})
    assert len(received.named("engine.step")) == 6
    assert server_span(received).trace_id.hex() == TRACE


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (QUEUE_FULL, "queue_full"),
        (refusal_of_a_full_queue(tenant_share=1.0), "queue_full"),
        (refusal_of_a_full_queue(tenant_share=0.5), "tenant_quota"),
        (InvalidRequestError((Violation("n", "too many"),)), "invalid_request"),
        (DeadlineError(1.0, in_queue=True), "deadline"),
        (None, "other"),
    ],
)
def test_a_rejection_is_counted_by_its_reason(error: RequestError | None, reason: str) -> None:
    telemetry = Telemetry(Settings(), "tiny")
    start(telemetry).finished("RESOURCE_EXHAUSTED", error)
    rejected = {name: count.value for name, count in telemetry.metrics.requests.rejected.items() if count.value}
    assert rejected == {reason: 1}
    assert telemetry.metrics.requests.active == 0
