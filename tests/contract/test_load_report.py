"""ORCA reports: in the trailers of every call, and on the out-of-band stream."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from weir.engine.errors import QueueFullError
from weir.orca.load_report_pb2 import OrcaLoadReport
from weir.orca.service_pb2 import OrcaLoadReportRequest
from weir.server.app import App
from weir.server.load_report import RateMeter
from weir.v1 import inference_pb2 as pb

from tests.contract.fake_engine import FakeEngine
from tests.contract.http2 import trailers_of

COMPLETE = "/weir.v1.InferenceService/Complete"
GENERATE = "/weir.v1.InferenceService/Generate"
REQUEST = pb.GenerateRequest(prompt=pb.Prompt(text="x")).SerializeToString()


def report_in(trailers: dict[str, bytes]) -> OrcaLoadReport:
    return OrcaLoadReport.FromString(trailers["endpoint-load-metrics-bin"])


@pytest.mark.parametrize("method", [COMPLETE, GENERATE])
async def test_a_call_that_succeeds_ends_with_the_load(app: App, engine: FakeEngine, method: str) -> None:
    engine.set_budget(kv_used_tokens=100, kv_free_tokens=300, running=2)
    trailers = await trailers_of(app.port, method, REQUEST)
    assert trailers["grpc-status"] == b"0"
    report = report_in(trailers)
    # 100 of 400 KV tokens, and 2 of 8 running.
    assert report.application_utilization == pytest.approx(0.25)
    assert dict(report.named_metrics) == {"kv_cache_utilization": 0.25, "max_token_capacity": 400.0}
    # The first request within a window of 10 s.
    assert report.rps_fractional == pytest.approx(0.1, rel=0.05)


@pytest.mark.parametrize("method", [COMPLETE, GENERATE])
async def test_a_refused_call_ends_with_the_load_too(app: App, engine: FakeEngine, method: str) -> None:
    engine.reserve_error = QueueFullError(1, 0, 1, 1, 1.0)
    # 400 used and 200 more queued: one and a half times what the pool holds.
    engine.set_budget(kv_used_tokens=400, kv_free_tokens=0, queued=3, queued_tokens=200)
    trailers = await trailers_of(app.port, method, REQUEST)
    assert trailers["grpc-status"] == b"8"
    assert trailers["grpc-retry-pushback-ms"] == b"1000"
    assert report_in(trailers).application_utilization == pytest.approx(1.5)


@pytest.mark.parametrize(
    "method",
    [
        "/weir.v1.BudgetService/GetBudget",
        "/weir.v1.InferenceService/GetModel",
        "/grpc.health.v1.Health/Check",
    ],
)
async def test_every_other_call_ends_with_the_load(app: App, method: str) -> None:
    assert report_in(await trailers_of(app.port, method, b"")).rps_fractional > 0


async def test_a_message_that_does_not_parse_and_an_unknown_health_service_end_with_the_load(app: App) -> None:
    for method, message, status in ((COMPLETE, b"\xff", b"3"), ("/grpc.health.v1.Health/Check", b"\x0a\x01x", b"5")):
        trailers = await trailers_of(app.port, method, message)
        assert trailers["grpc-status"] == status
        assert report_in(trailers).rps_fractional > 0


async def test_an_idle_server_never_reports_zero_because_balancers_ignore_such_reports(app: App) -> None:
    report = report_in(await trailers_of(app.port, "/grpc.health.v1.Health/Check", b""))
    assert (report.application_utilization, report.rps_fractional) == (0.01, 0.01)


async def test_a_loading_server_reports_too(loading: App) -> None:
    trailers = await trailers_of(loading.port, COMPLETE, REQUEST)
    assert trailers["grpc-status"] == b"14"
    assert report_in(trailers).application_utilization == 0.01


async def test_running_slots_count_when_they_are_fuller_than_the_pool(app: App, engine: FakeEngine) -> None:
    engine.set_budget(kv_used_tokens=40, running=6)
    report = report_in(await trailers_of(app.port, "/grpc.health.v1.Health/Check", b""))
    assert report.application_utilization == pytest.approx(0.75)


def test_the_messages_are_those_of_orca_byte_for_byte() -> None:
    # Serialized once with the package xds-protos, which is not installed here: every field, with values that differ.
    report = bytes.fromhex(
        "09000000000000e03f11000000000000d03f220c0a01611100000000000000402a0c0a016211000000000000e83f31000000000000f83f"
        "390000000000000840421f0a146b765f63616368655f7574696c697a6174696f6e11000000000000e03f49000000000000f43f"
    )
    assert report == OrcaLoadReport(
        cpu_utilization=0.5,
        mem_utilization=0.25,
        request_cost={"a": 2.0},
        utilization={"b": 0.75},
        rps_fractional=1.5,
        eps=3.0,
        named_metrics={"kv_cache_utilization": 0.5},
        application_utilization=1.25,
    ).SerializeToString(deterministic=True)
    asked = OrcaLoadReportRequest.FromString(bytes.fromhex("0a0808021080cab5ee01120178"))
    assert (asked.report_interval.ToMilliseconds(), list(asked.request_cost_names)) == (2500, ["x"])


async def test_the_out_of_band_stream_reports_at_the_interval_asked_for(
    app: App, engine: FakeEngine, channel: grpc.aio.Channel
) -> None:
    stream = channel.unary_stream(
        "/xds.service.orca.v3.OpenRcaService/StreamCoreMetrics",
        request_serializer=OrcaLoadReportRequest.SerializeToString,
        response_deserializer=OrcaLoadReport.FromString,
    )
    call = stream(OrcaLoadReportRequest(report_interval=Duration(nanos=100_000_000)))
    async with asyncio.timeout(5):
        first = await call.read()
        engine.set_budget(kv_used_tokens=200)
        second = await call.read()
        while second.named_metrics["kv_cache_utilization"] == 0:
            second = await call.read()
    assert first.named_metrics["kv_cache_utilization"] == 0.0
    assert second.named_metrics["kv_cache_utilization"] == 0.5
    call.cancel()


def test_the_rate_settles_at_the_true_rate_and_decays_when_nothing_comes() -> None:
    now = 0.0
    meter = RateMeter(window_s=10.0, clock=lambda: now)
    for _ in range(1000):
        now += 0.1
        meter.add()
    # Just after an event, the average of a steady 10 per second stands half an event's share above it.
    assert meter.rate() == pytest.approx(10.0 + 0.05, abs=0.01)
    now += 10.0
    assert meter.rate() == pytest.approx(10.05 / 2.718281828, abs=0.01)
