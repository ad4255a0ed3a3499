"""The service around the engine: health that tells the truth, calls that give everything back, spans that end."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from prometheus_client.parser import text_string_to_metric_families as parse_text
from weir.client import (
    AsyncClient,
    DeadlineError,
    InvalidRequestError,
    RequestCancelledError,
    ServerError,
    UnavailableError,
)
from weir.config import ServerSettings, Settings, TelemetrySettings
from weir.engine.errors import QueueFullError
from weir.engine.process import EngineClient
from weir.server import serve
from weir.server.app import App
from weir.server.prompts import NoTokenizer
from weir.telemetry.telemetry import Telemetry
from weir.v1 import admin_pb2, admin_pb2_grpc, inference_pb2_grpc
from weir.v1 import inference_pb2 as pb

from tests.contract.decode import eventually, refusal
from tests.contract.fake_engine import FakeEngine
from tests.contract.fake_tokenizer import ByteTokenizer
from tests.unit.telemetry.factories import Received, attributes, grpc_receiver

LOOPBACK = ServerSettings(
    host="127.0.0.1", port=0, admin_address="127.0.0.1:0", metrics_host="127.0.0.1", metrics_port=0, drain_timeout_s=5.0
)
SERVICES = ("", "liveness", "readiness", "weir.v1.InferenceService")


def nothing_held(app: App, engine: FakeEngine) -> bool:
    return engine.gate.requests == 0 and engine.gate.tokens == 0 and not engine.streams and len(app.live) == 0


# -- health -------------------------------------------------------------------------------------------------------


async def test_health_answers_while_every_tokenizer_is_busy_and_fifty_requests_wait(
    app: App, client: AsyncClient, engine: FakeEngine, tokenizer: ByteTokenizer
) -> None:
    """sglang#11338: the health check waited behind 50 requests, and a server that was only busy was restarted."""
    tokenizer.gate.clear()
    engine.admitting.clear()
    calls = [asyncio.create_task(client.complete("abc", max_tokens=3, timeout_s=30)) for _ in range(25)]
    calls += [asyncio.create_task(client.complete(token_ids=[1, 2], timeout_s=30)) for _ in range(25)]
    await eventually(lambda: len(app.live) == 50)
    async with asyncio.timeout(5):
        assert [await client.health(service) for service in SERVICES] == [True] * 4
    tokenizer.gate.set()
    engine.admitting.set()
    assert [len((await call).token_ids) for call in calls] == [3] * 25 + [2] * 25


async def test_an_engine_process_that_hangs_is_not_alive_and_one_that_goes_on_is_alive_again(
    dummy_settings: Callable[..., Settings],
) -> None:
    """vllm#39863: health said 200 while the engine hung, and nobody restarted it."""
    model = dummy_settings(max_model_len=4096, kv_memory_bytes=4 * 2**20, stall_timeout_s=0.5)
    settings = Settings(model=model.model, engine=model.engine, server=LOOPBACK)
    engine = EngineClient(settings)
    engine.start()
    app = App(settings, engine, NoTokenizer())
    await app.start()
    pid = engine._process.pid
    assert pid is not None
    async with AsyncClient(f"127.0.0.1:{app.port}", max_attempts=1) as client:
        await client.wait_ready(60)
        stream = client.generate(token_ids=[5, 6, 7], max_tokens=4000, ignore_eos=True)
        await anext(stream)
        assert await client.health("liveness")
        os.kill(pid, signal.SIGSTOP)
        try:
            await health_becomes(client, False)
        finally:
            os.kill(pid, signal.SIGCONT)
        await health_becomes(client, True)
        assert len((await anext(stream)).token_ids) == 1
        stream.close()
    await app.shut_down()


async def test_an_engine_process_that_hangs_while_idle_is_noticed_by_the_first_request_and_refuses_the_next(
    dummy_settings: Callable[..., Settings],
) -> None:
    """An idle engine shows no heartbeat, so one that hung in its sleep was healthy for ever, with requests waiting."""
    model = dummy_settings(max_model_len=512, kv_memory_bytes=4 * 2**20, stall_timeout_s=0.5)
    settings = Settings(model=model.model, engine=model.engine, server=LOOPBACK)
    engine = EngineClient(settings)
    engine.start()
    app = App(settings, engine, NoTokenizer())
    await app.start()
    pid = engine._process.pid
    assert pid is not None
    async with AsyncClient(f"127.0.0.1:{app.port}", max_attempts=1) as client:
        await client.wait_ready(60)
        await client.complete(token_ids=[5, 6, 7], max_tokens=2)
        await eventually(lambda: not engine.progress().busy)
        os.kill(pid, signal.SIGSTOP)
        try:
            # Nothing is asked of it, so nothing is wrong.
            await asyncio.sleep(0.7)
            assert await client.health("liveness")
            waiting = [asyncio.create_task(client.complete(token_ids=[5, 6, n], max_tokens=2)) for n in range(5)]
            await health_becomes(client, False)
            with pytest.raises(UnavailableError) as refused:
                await client.complete(token_ids=[1], max_tokens=2)
            assert (refused.value.reason, refused.value.retry_after_s) == ("ENGINE_STALLED", 1.0)
            async with grpc.aio.insecure_channel(app.admin_target) as admin:
                stub = admin_pb2_grpc.AdminServiceStub(admin)  # type: ignore[no-untyped-call]
                flushed = await refusal(stub.FlushPrefixCache(admin_pb2.FlushPrefixCacheRequest()))
                assert flushed.details["ErrorInfo"].reason == "ENGINE_STALLED"
        finally:
            os.kill(pid, signal.SIGCONT)
        assert [len((await answer).token_ids) for answer in waiting] == [2] * 5
        await health_becomes(client, True)
        assert len((await client.complete(token_ids=[1], max_tokens=2)).token_ids) == 2
    await app.shut_down()


async def health_becomes(client: AsyncClient, wanted: bool) -> None:
    """Ask until every service has this status."""
    async with asyncio.timeout(30):
        while [await client.health(service) for service in SERVICES] != [wanted] * 4:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.02)


# -- the engine's process -----------------------------------------------------------------------------------------


def test_the_engine_process_is_spawned_never_forked(dummy_settings: Callable[..., Settings]) -> None:
    """grpc#32992: a fork after gRPC had started its threads hung."""
    assert isinstance(EngineClient(dummy_settings())._process, multiprocessing.context.SpawnProcess)


def test_the_engine_process_is_started_before_grpc_exists(
    monkeypatch: pytest.MonkeyPatch, dummy_settings: Callable[..., Settings]
) -> None:
    order: list[str] = []

    class Engine:
        def __init__(self, *parts: object) -> None: ...

        def start(self) -> None:
            order.append("engine started")

    class Server:
        def __init__(self, *parts: object) -> None:
            order.append("server made")

        async def run(self, *signals: object) -> int:
            return 0

    monkeypatch.setattr(serve, "EngineClient", Engine)
    monkeypatch.setattr(serve, "App", Server)
    settings = dummy_settings()
    assert serve.serve(Settings(model=settings.model, engine=settings.engine, server=LOOPBACK)) == 0
    assert order == ["engine started", "server made"]


def test_the_engine_needs_no_grpc_at_all() -> None:
    code = "import sys, weir.engine.process, weir.engine.load; print([m for m in sys.modules if m == 'grpc'])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


# -- everything is given back -------------------------------------------------------------------------------------


async def test_exceptions_inside_leave_nothing_behind_however_many_there_are(
    app: App, client: AsyncClient, engine: FakeEngine, tokenizer: ByteTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """grpc#36908: each exception that a handler did not catch leaked its call."""

    async def broken(prompt: pb.Prompt) -> list[int]:
        raise RuntimeError("the tokenizer is broken")

    with monkeypatch.context() as patch:
        patch.setattr(tokenizer, "encode", broken)
        first = await asyncio.gather(*(client.complete("x") for _ in range(100)), return_exceptions=True)
    engine.submit_error = KeyError("inside")
    second = await asyncio.gather(*(client.complete("x") for _ in range(100)), return_exceptions=True)
    assert Counter(map(type, [*first, *second])) == {ServerError: 200}
    assert nothing_held(app, engine)
    engine.submit_error = None
    assert (await client.complete("ok", max_tokens=2)).text == "ok"


async def test_a_stream_that_nobody_reads_holds_nothing_after_its_deadline(
    app: App, channel: grpc.aio.Channel, engine: FakeEngine
) -> None:
    """grpc#43462: an abandoned call was never collected by the client, so it was never cancelled."""
    engine.decoding.clear()
    stub = inference_pb2_grpc.InferenceServiceStub(channel)  # type: ignore[no-untyped-call]
    abandoned = [stub.Generate(pb.GenerateRequest(prompt=pb.Prompt(text="abc")), timeout=1.0) for _ in range(5)]
    await eventually(lambda: len(engine.streams) == 5)
    await eventually(lambda: nothing_held(app, engine))
    assert [await call.code() for call in abandoned] == [grpc.StatusCode.DEADLINE_EXCEEDED] * 5


# -- with telemetry on --------------------------------------------------------------------------------------------


@asynccontextmanager
async def observed(endpoint: str | None) -> AsyncIterator[tuple[App, FakeEngine, AsyncClient, Telemetry]]:
    """The scripted engine behind a server whose telemetry is the real one."""
    settings = Settings(server=LOOPBACK, telemetry=TelemetrySettings(trace_endpoint=endpoint))
    engine, telemetry = FakeEngine(), Telemetry(settings, "echo")
    app = App(settings, engine, ByteTokenizer(), telemetry)
    await app.start()
    engine.load()
    await app.lifecycle.changed(0, timeout_s=5)
    async with AsyncClient(f"127.0.0.1:{app.port}", max_attempts=1) as client:
        yield app, engine, client, telemetry
    engine.decoding.set()
    await app.shut_down()


def statuses(received: Received) -> Counter[str]:
    """The status of every call's own span; one that has not ended was never sent."""
    spans = [span for span in received.spans if span.kind == Span.SPAN_KIND_SERVER]
    return Counter(attributes(span.attributes)["rpc.response.status_code"] for span in spans)


async def test_every_call_has_one_ended_span_with_its_true_status(caplog: pytest.LogCaptureFixture) -> None:
    """brave#1340: the span of a cancelled stream never ended. opentelemetry-python#2606: "Failed to detach context"."""
    with grpc_receiver() as (endpoint, received), caplog.at_level(logging.WARNING):
        async with observed(endpoint) as (app, engine, client, _):
            await client.complete("ok", max_tokens=2)
            assert [delta.text async for delta in client.generate("ok", max_tokens=2)] == ["o", "k"]
            engine.decoding.clear()
            engine.ungated_tokens = 1
            for _ in range(3):
                stream = client.generate("abc")
                await anext(stream)
                stream.close()
            with pytest.raises(DeadlineError):
                await client.complete("abc", timeout_s=0.1)
            stream = client.generate("abc", request_id="by id")
            await anext(stream)
            await client.cancel("by id")
            with pytest.raises(RequestCancelledError):
                await anext(stream)
            engine.submit_error = KeyError("inside")
            with pytest.raises(ServerError):
                await client.complete("x")
            await eventually(lambda: nothing_held(app, engine))
    assert statuses(received) == {"OK": 2, "CANCELLED": 4, "DEADLINE_EXCEEDED": 1, "INTERNAL": 1}
    assert {record.name for record in caplog.records} <= {"weir.server.rpc"}  # the one internal error


async def test_a_request_that_is_refused_for_its_size_is_observed_too() -> None:
    with grpc_receiver() as (endpoint, received):
        async with observed(endpoint) as (app, engine, client, telemetry):
            for call in (client.complete("x" * 1025), anext(client.generate("x" * 1025))):
                with pytest.raises(InvalidRequestError, match=r"prompt\.text: has 1025 bytes"):
                    await call
            await eventually(lambda: nothing_held(app, engine))
            assert telemetry.metrics.requests.active == 0
    assert statuses(received) == {"INVALID_ARGUMENT": 2}


async def test_details_and_pushback_reach_the_client_with_tracing_on() -> None:
    """opentelemetry-python-contrib#2065: instrumentation swallowed the trailing metadata of an abort."""
    with grpc_receiver() as (endpoint, received):
        async with observed(endpoint) as (app, engine, _, _):
            engine.reserve_error = QueueFullError(7, 0, 100, 3, 2.5)
            async with grpc.aio.insecure_channel(f"127.0.0.1:{app.port}") as channel:
                stub = inference_pb2_grpc.InferenceServiceStub(channel)  # type: ignore[no-untyped-call]
                for call in (
                    stub.Complete(pb.CompleteRequest(prompt=pb.Prompt(text="x"))),
                    stub.Generate(pb.GenerateRequest(prompt=pb.Prompt(text="x"))).read(),
                ):
                    refused = await refusal(call)
                    assert refused.code is grpc.StatusCode.RESOURCE_EXHAUSTED
                    assert refused.trailers["grpc-retry-pushback-ms"] == "2500"
                    assert refused.details["ErrorInfo"].metadata["needed_tokens"] == "7"
    assert statuses(received) == {"RESOURCE_EXHAUSTED": 2}


async def test_a_collector_that_never_answers_delays_neither_calls_nor_the_end() -> None:
    """opentelemetry-python#4043: with the collector down, the application hung at its shutdown for a minute."""
    with grpc_receiver(hold=threading.Event()) as (endpoint, received):
        async with asyncio.timeout(30), observed(endpoint) as (_, _, client, telemetry):
            for _ in range(50):
                assert (await client.complete("ok", max_tokens=2)).text == "ok"
        assert received.requests == []
        assert sum(count.value for count in telemetry.metrics.traces.dropped.values()) > 0


async def test_what_clients_send_makes_no_new_series() -> None:
    """litellm#39136: request ids and model names as labels grew the metrics until memory was full."""

    def series(telemetry: Telemetry) -> set[Any]:
        return {
            (sample.name, tuple(sorted(sample.labels.items())))
            for family in parse_text(telemetry.metrics.text().decode())
            for sample in family.samples
        }

    async with observed(None) as (app, _, client, telemetry):
        await client.complete("ok", max_tokens=2)
        before = series(telemetry)
        for number in range(50):
            await client.complete("ok", max_tokens=2, request_id=f"id-{number}")
            async with AsyncClient(f"127.0.0.1:{app.port}", tenant=f"tenant-{number}", max_attempts=1) as other:
                await other.complete("ok", max_tokens=1 + number)
                with pytest.raises(Exception, match="model"):
                    await other.complete("ok", model=f"model-{number}")
        assert series(telemetry) == before
