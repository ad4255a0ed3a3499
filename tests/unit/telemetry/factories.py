"""Small builders of what the engine sends, a scripted engine view, and receivers that speak OTLP."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from weir.engine.records import BudgetSnapshot, ChunkRecord, EngineInfo, PhaseTimes, StepRecord
from weir.engine.request import (
    Admitted,
    ChoiceFinish,
    Delta,
    Done,
    FinishReason,
    GenerateRequest,
    SamplingParams,
    Timings,
    Usage,
)

GENERATE = "weir.v1.InferenceService/Generate"
COMPLETE = "weir.v1.InferenceService/Complete"


def decode(request_id: str, position: int = 10, choice: int = 0) -> ChunkRecord:
    return ChunkRecord(request_id, choice, position, 1)


def prefill(request_id: str, start: int, length: int, choice: int = 0) -> ChunkRecord:
    return ChunkRecord(request_id, choice, start, length)


def step(
    number: int = 1,
    decodes: tuple[ChunkRecord, ...] = (),
    prefills: tuple[ChunkRecord, ...] = (),
    duration_ns: int = 20_000_000,
    start_ns: int | None = None,
    preempted: tuple[str, ...] = (),
    oldest_queued_s: float = 0.0,
) -> StepRecord:
    start = time.monotonic_ns() - duration_ns if start_ns is None else start_ns
    return StepRecord(
        step=number,
        start_ns=start,
        end_ns=start + duration_ns,
        phases=PhaseTimes(plan_s=0.001, launch_s=0.002, device_s=0.014, collect_s=0.0005, emit_s=0.0025),
        decodes=decodes,
        prefills=prefills,
        prefix_hit_tokens=16,
        running=len({chunk.request_id for chunk in decodes + prefills}),
        queued=3,
        queued_tokens=700,
        oldest_queued_s=oldest_queued_s,
        admitted=tuple(chunk.request_id for chunk in prefills if chunk.start == 0),
        finished=(),
        preempted=preempted,
        rejected=2,
        kv_total_tokens=4096,
        kv_free_tokens=3000,
        kv_used_tokens=1000,
        kv_cached_tokens=96,
        kv_reserved_peak_tokens=2048,
    )


def request(
    request_id: str = "r1", prompt: tuple[int, ...] = (1, 2, 3, 4), max_tokens: int = 8, n: int = 1
) -> GenerateRequest:
    return GenerateRequest(request_id, prompt, SamplingParams(max_tokens=max_tokens, temperature=0.5, seed=7), n=n)


def admitted(request_id: str = "r1", prompt_tokens: int = 4, cached_tokens: int = 0) -> Admitted:
    return Admitted(request_id, prompt_tokens, cached_tokens, queue_s=0.0, max_tokens=8)


def delta(request_id: str = "r1", tokens: int = 1, text: str = "x", last: bool = False, choice: int = 0) -> Delta:
    finish = ChoiceFinish(FinishReason.LENGTH) if last else None
    return Delta(request_id, choice, tuple(range(tokens)), text, finish=finish)


def done(request_id: str = "r1", completion_tokens: int = 2) -> Done:
    return Done(request_id, Usage(4, completion_tokens, 0), Timings(0.0, 0.1, 0.1, 0.2))


def engine_info() -> EngineInfo:
    return EngineInfo(
        model_name="tiny",
        model_path="models/tiny",
        architecture="LlamaForCausalLM",
        dtype="bfloat16",
        device="cpu",
        kernels="cpu",
        vocab_size=256,
        max_model_len=2048,
        block_size=16,
        kv_total_tokens=4096,
        kv_bytes_per_token=1024,
        max_batch_tokens=512,
        max_running=64,
        default_max_tokens=128,
        eos_token_ids=(0,),
    )


BUDGET = BudgetSnapshot(
    kv_total_tokens=4096,
    kv_free_tokens=3000,
    kv_used_tokens=1024,
    kv_cached_tokens=72,
    kv_reserved_peak_tokens=2048,
    running=5,
    queued=3,
    queued_tokens=700,
    estimated_wait_s=1.5,
    step=9,
)


@dataclass
class Progress:
    busy: bool = False
    step_age_s: float = 0.0


@dataclass
class EngineStub:
    """Answers with fixed values, as the engine client does from memory."""

    budget: BudgetSnapshot = BUDGET
    state: Progress = field(default_factory=Progress)

    def snapshot(self) -> BudgetSnapshot:
        return self.budget

    def progress(self) -> Progress:
        return self.state


class Received:
    """Spans that reached a receiver, decoded from the protocol."""

    def __init__(self) -> None:
        self.requests: list[trace_service_pb2.ExportTraceServiceRequest] = []
        self.headers: list[dict[str, str]] = []

    @property
    def spans(self) -> list[Span]:
        return [
            span
            for request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def named(self, name: str) -> list[Span]:
        return [span for span in self.spans if span.name == name]


def attributes(found: Iterable[KeyValue]) -> dict[str, Any]:
    """Protobuf attributes as a plain mapping."""
    plain: dict[str, Any] = {}
    for item in found:
        value = item.value
        if value.HasField("array_value"):
            plain[item.key] = [entry.string_value for entry in value.array_value.values]
        else:
            plain[item.key] = getattr(value, value.WhichOneof("value") or "string_value")
    return plain


class _TraceService(trace_service_pb2_grpc.TraceServiceServicer):
    def __init__(self, received: Received, code: grpc.StatusCode, hold: threading.Event | None) -> None:
        self._received = received
        self._code = code
        self._hold = hold

    def Export(  # noqa: N802
        self, request: trace_service_pb2.ExportTraceServiceRequest, context: grpc.ServicerContext
    ) -> trace_service_pb2.ExportTraceServiceResponse:
        if self._hold is not None:
            self._hold.wait()
        if self._code is not grpc.StatusCode.OK:
            context.abort(self._code, "not today")
        self._received.requests.append(request)
        self._received.headers.append({item.key: item.value for item in context.invocation_metadata()})
        return trace_service_pb2.ExportTraceServiceResponse()


@contextmanager
def grpc_receiver(
    code: grpc.StatusCode = grpc.StatusCode.OK, hold: threading.Event | None = None
) -> Iterator[tuple[str, Received]]:
    """An OTLP/gRPC collector on loopback: its endpoint and what it received. `hold`: answer only when it is set."""
    received = Received()
    server = grpc.server(ThreadPoolExecutor(max_workers=2))
    add_service: Callable[[object, grpc.Server], None] = trace_service_pb2_grpc.add_TraceServiceServicer_to_server
    add_service(_TraceService(received, code, hold), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"http://127.0.0.1:{port}", received
    finally:
        if hold is not None:
            hold.set()
        server.stop(grace=None).wait()


@contextmanager
def http_receiver() -> Iterator[tuple[str, Received]]:
    """An OTLP/HTTP collector on loopback."""
    received = Received()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            received.requests.append(trace_service_pb2.ExportTraceServiceRequest.FromString(body))
            received.headers.append({**dict(self.headers.items()), ":path": self.path})
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", received
    finally:
        server.shutdown()
        server.server_close()
