"""Messages that never come whole, and streams that last as long as the client likes."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from weir.orca.load_report_pb2 import OrcaLoadReport
from weir.orca.service_pb2 import OrcaLoadReportRequest
from weir.server.app import App
from weir.server.watches import MAX_PER_CONNECTION, seconds_within
from weir.v1 import admin_pb2, admin_pb2_grpc, budget_pb2, budget_pb2_grpc
from weir.v1 import inference_pb2 as pb

from tests.contract.decode import eventually, refusal
from tests.contract.fake_engine import FakeEngine
from tests.contract.http2 import refusal_in
from tests.contract.observed_app import observed_app
from tests.contract.raw_client import RawClient

INFERENCE = "/weir.v1.InferenceService/"
REQUEST = pb.CompleteRequest(prompt=pb.Prompt(text="ab")).SerializeToString()


@pytest.mark.parametrize(
    "method",
    [
        f"{INFERENCE}Generate",
        f"{INFERENCE}Complete",
        f"{INFERENCE}GetModel",
        "/grpc.health.v1.Health/Check",
        "/weir.v1.BudgetService/WatchBudget",
        "/xds.service.orca.v3.OpenRcaService/StreamCoreMetrics",
    ],
)
async def test_a_message_that_does_not_come_whole_ends_its_call_in_time(engine: FakeEngine, method: str) -> None:
    async with observed_app(engine, receive_timeout_s=0.2) as server, RawClient(server.app.port) as client:
        stream = client.call(method, REQUEST, end_stream=False, missing_bytes=1)
        await eventually(lambda: stream in client.ended)
        refused = refusal_in(client.headers[stream])
        assert (refused.code, refused.reason, refused.pushback) == (4, "REQUEST_INCOMPLETE", "-1")
        # The connection, and calls beside it, are none the worse.
        whole = client.call(f"{INFERENCE}Complete", REQUEST)
        await eventually(lambda: whole in client.ended)
        assert client.headers[whole]["grpc-status"] == "0"


async def test_a_whole_message_is_answered_though_its_stream_is_left_open(app: App) -> None:
    async with RawClient(app.port) as client:
        for method in ("Complete", "Generate"):
            stream = client.call(INFERENCE + method, REQUEST, end_stream=False)
            await eventually(lambda ended=stream: ended in client.ended)  # type: ignore[misc]
            assert client.headers[stream]["grpc-status"] == "0"


async def test_a_call_without_any_message_is_told_so(app: App, channel: grpc.aio.Channel) -> None:
    call = channel.stream_unary(f"{INFERENCE}Complete")
    refused = await refusal(call(iter(())))
    assert refused.code is grpc.StatusCode.INVALID_ARGUMENT
    assert [v.field for v in refused.details["BadRequest"].field_violations] == ["request"]


@pytest.mark.parametrize("seconds", [10**15, -(10**15), 0, 1, 315_576_000_000])
async def test_any_load_report_interval_is_one_that_can_be_kept(
    app: App, channel: grpc.aio.Channel, seconds: int
) -> None:
    stream = channel.unary_stream(
        "/xds.service.orca.v3.OpenRcaService/StreamCoreMetrics",
        request_serializer=OrcaLoadReportRequest.SerializeToString,
        response_deserializer=OrcaLoadReport.FromString,
    )
    call = stream(OrcaLoadReportRequest(report_interval=Duration(seconds=seconds)))
    assert (await call.read()).rps_fractional > 0
    call.cancel()


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -1.0, 1e300, 5e-324])
async def test_any_budget_interval_and_any_drain_time_is_one_that_can_be_kept(
    app: App, channel: grpc.aio.Channel, admin_channel: grpc.aio.Channel, seconds: float
) -> None:
    watch = budget_pb2_grpc.BudgetServiceStub(channel).WatchBudget(  # type: ignore[no-untyped-call]
        budget_pb2.WatchBudgetRequest(min_interval_s=seconds)
    )
    assert (await watch.read()).budget.kv_total_tokens == 400
    watch.cancel()
    admin = admin_pb2_grpc.AdminServiceStub(admin_channel)  # type: ignore[no-untyped-call]
    assert (await admin.Drain(admin_pb2.DrainRequest(wait_s=seconds))).in_flight_requests == 0


@pytest.mark.parametrize(
    ("asked", "kept"),
    [(0.0, 1.0), (float("nan"), 1.0), (0.001, 0.25), (-5.0, 0.25), (0.25, 0.25), (7.0, 7.0), (1e15, 86_400.0)],
)
def test_a_time_that_a_client_asks_for_is_kept_within_bounds(asked: float, kept: float) -> None:
    assert seconds_within(asked, lowest_s=0.25, default_s=1.0) == kept


async def test_a_connection_may_have_so_many_watches_and_others_are_not_touched(app: App) -> None:
    watch_budget = "/weir.v1.BudgetService/WatchBudget"
    async with RawClient(app.port) as client, RawClient(app.port) as other:
        watches = [client.call(watch_budget, b"") for _ in range(MAX_PER_CONNECTION)]
        await eventually(lambda: all(client.messages(watch) for watch in watches))
        for method in (watch_budget, "/xds.service.orca.v3.OpenRcaService/StreamCoreMetrics"):
            more = client.call(method, b"")
            await eventually(lambda ended=more: ended in client.ended)  # type: ignore[misc]
            refused = refusal_in(client.headers[more])
            assert (refused.code, refused.reason, refused.pushback) == (8, "TOO_MANY_WATCHES", "5000")
        elsewhere = other.call(watch_budget, b"")
        await eventually(lambda: len(other.messages(elsewhere)) == 1)
        # Its place is free again when one ends.
        client.cancel(watches[0])
        await asyncio.sleep(0.05)
        again = client.call(watch_budget, b"")
        await eventually(lambda: len(client.messages(again)) == 1)


async def test_a_server_has_so_many_watches(engine: FakeEngine) -> None:
    async with (
        observed_app(engine, max_watches=3) as server,
        RawClient(server.app.port) as client,
        RawClient(server.app.port) as other,
    ):
        watches = [client.call("/weir.v1.BudgetService/WatchBudget", b"") for _ in range(3)]
        await eventually(lambda: all(client.messages(watch) for watch in watches))
        more = other.call("/weir.v1.BudgetService/WatchBudget", b"")
        await eventually(lambda: more in other.ended)
        assert refusal_in(other.headers[more]).reason == "TOO_MANY_WATCHES"
        # Health is never refused.
        health = [other.call("/grpc.health.v1.Health/Watch", b"") for _ in range(50)]
        await eventually(lambda: all(other.messages(watch) for watch in health))


async def test_a_burst_of_thousands_gets_typed_answers_only(engine: FakeEngine) -> None:
    """Beyond a thousand calls that the event loop had not looked at, gRPC itself ended some with a bare CANCELLED."""
    engine.decoding.clear()
    async with observed_app(engine) as server:
        clients = [RawClient(server.app.port) for _ in range(4)]
        for client in clients:
            await client.__aenter__()
        # All at once, while the loop that the server shares with this test has no time to look at any.
        streams = [(client, client.call(f"{INFERENCE}Complete", REQUEST)) for _ in range(600) for client in clients]
        # 100 places in the queue, and 8 slots that are free.
        await eventually(lambda: sum(len(client.ended) for client in clients) >= 2400 - 108, timeout_s=120)
        engine.decoding.set()
        await eventually(lambda: all(stream in client.ended for client, stream in streams), timeout_s=120)
        codes = {client.headers[stream]["grpc-status"] for client, stream in streams}
        assert codes == {"0", "8"}
        refused = [client.headers[s] for client, s in streams if client.headers[s]["grpc-status"] == "8"]
        assert {refusal_in(headers).reason for headers in refused} == {"KV_BUDGET_EXHAUSTED"}
        assert sum(server.statuses().values()) == 2400
        for client in clients:
            assert client.reset == {}
            await client.__aexit__()
