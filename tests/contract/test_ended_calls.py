"""A call that its client, its deadline or its connection ends is told so in metrics and spans, and is no error."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator

import grpc
import pytest
from weir.client import AsyncClient, DeadlineError
from weir.server.deadline import Deadline
from weir.v1 import budget_pb2, budget_pb2_grpc, inference_pb2_grpc
from weir.v1 import inference_pb2 as pb

from tests.contract.decode import eventually
from tests.contract.fake_engine import FakeEngine
from tests.contract.observed_app import observed_app
from tests.contract.pushing_engine import PushingEngine, admitted, delta
from tests.contract.raw_client import RawClient
from tests.unit.telemetry.factories import attributes, grpc_receiver

GENERATE = "/weir.v1.InferenceService/Generate"
# A client that buffers next to nothing: a write waits as soon as nobody reads.
SMALL_WINDOW = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 1024)]


def request(request_id: str = "") -> pb.GenerateRequest:
    params = pb.SamplingParams(max_tokens=50, logprobs=20)
    return pb.GenerateRequest(request_id=request_id, prompt=pb.Prompt(text="abc"), params=params)


@pytest.fixture
async def quiet(caplog: pytest.LogCaptureFixture) -> AsyncIterator[None]:
    """No warning and no error is logged, by us, by gRPC or by asyncio."""
    with caplog.at_level(logging.INFO):
        yield
        await asyncio.sleep(0.05)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


async def blocked(engine: PushingEngine, stub: inference_pb2_grpc.InferenceServiceStub, **options: object):  # type: ignore[no-untyped-def]
    """A Generate call whose next message waits for its reader."""
    name = f"r{len(engine.readers)}"
    call = stub.Generate(request(name), **options)
    await engine.has(name)
    engine.tell(admitted(name))
    return name, call


async def fill(server_bytes: object, engine: PushingEngine, name: str) -> None:
    """Push until the stream's writer stands still: what waits only grows."""
    backlogs = server_bytes
    waits = 0
    for token in range(2000):
        engine.tell(delta(name, token, alternatives=20))
        await asyncio.sleep(0.001)
        before, waits = waits, backlogs.bytes  # type: ignore[attr-defined]
        if waits > before > 100_000:
            return
    raise AssertionError("the writer never stood still")


@pytest.mark.parametrize("end", ["cancel", "deadline", "close"])
@pytest.mark.usefixtures("quiet")
async def test_a_call_that_ends_under_a_blocked_write_has_the_status_of_its_end(end: str) -> None:
    engine = PushingEngine()
    async with observed_app(engine) as server:
        for _ in range(5):
            channel = grpc.aio.insecure_channel(f"127.0.0.1:{server.app.port}", options=SMALL_WINDOW)
            stub = inference_pb2_grpc.InferenceServiceStub(channel)  # type: ignore[no-untyped-call]
            name, call = await blocked(engine, stub, timeout=1.0 if end == "deadline" else None)
            await fill(server.app.backlogs, engine, name)
            match end:
                case "cancel":
                    call.cancel()
                case "deadline":
                    assert await call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
                case _:
                    await channel.close()
            await eventually(lambda gone=name: gone in engine.cancelled)  # type: ignore[misc]
            await eventually(lambda: server.app.backlogs.bytes == 0)
            await channel.close()
        await eventually(lambda: sum(server.statuses().values()) == 5)
        assert server.statuses() == {"DEADLINE_EXCEEDED" if end == "deadline" else "CANCELLED": 5}
        assert len(server.app.live) == 0


@pytest.mark.usefixtures("quiet")
async def test_a_call_that_ends_under_its_very_first_write_has_the_status_of_its_end() -> None:
    engine = PushingEngine()
    async with observed_app(engine) as server, RawClient(server.app.port, window=0) as client:
        streams = []
        for number in range(5):
            streams.append(client.call(GENERATE, request(f"r{number}").SerializeToString()))
            await engine.has(f"r{number}")
            engine.tell(admitted(f"r{number}"))
        await asyncio.sleep(0.05)
        for stream in streams:
            client.cancel(stream)
        await eventually(lambda: server.statuses() == {"CANCELLED": 5})
        assert len(engine.cancelled) == 5


@pytest.mark.usefixtures("quiet")
async def test_thousands_of_cancels_at_any_moment_are_cancels(engine: FakeEngine) -> None:
    """Some of them come while a message is on its way: gRPC says that with an error from the write."""
    async with observed_app(engine) as server, AsyncClient(f"127.0.0.1:{server.app.port}", max_attempts=1) as client:

        async def one(number: int) -> None:
            stream = client.generate("abcdefgh" * 4, max_tokens=32)
            for _ in range(number % 5):
                await anext(stream)
            stream.close()

        for _ in range(20):
            await asyncio.gather(*(one(number) for number in range(100)))
        await eventually(lambda: len(server.app.live) == 0)
        await eventually(lambda: sum(server.statuses().values()) > 0)
        assert set(server.statuses()) <= {"CANCELLED", "OK"}


@pytest.mark.usefixtures("quiet")
async def test_every_deadline_is_a_deadline_and_every_cancel_a_cancel_in_metrics_and_spans(engine: FakeEngine) -> None:
    engine.decoding.clear()
    with grpc_receiver() as (endpoint, received):
        async with (
            observed_app(engine, trace_endpoint=endpoint) as server,
            AsyncClient(f"127.0.0.1:{server.app.port}", max_attempts=1) as client,
        ):

            async def out_of_time(number: int) -> None:
                with pytest.raises(DeadlineError):
                    await client.complete("abc", timeout_s=0.8 + 0.01 * number)

            assert await client.health()  # the connection is there: no call spends its time on it
            await asyncio.gather(*(out_of_time(number) for number in range(50)))
            await eventually(lambda: sum(server.statuses().values()) == 50)
            assert server.statuses() == {"DEADLINE_EXCEEDED": 50}
            cancelled = [asyncio.create_task(client.complete("abc", timeout_s=60)) for _ in range(50)]
            await eventually(lambda: len(engine.streams) == 50)
            for task in cancelled:
                task.cancel()
            await eventually(lambda: sum(server.statuses().values()) == 100)
            assert server.statuses() == {"DEADLINE_EXCEEDED": 50, "CANCELLED": 50}
    codes = Counter(
        attributes(span.attributes)["rpc.response.status_code"]
        for span in received.spans
        if "rpc.response.status_code" in attributes(span.attributes)
    )
    assert codes == {"DEADLINE_EXCEEDED": 50, "CANCELLED": 50}


@pytest.mark.parametrize(
    ("timeout_s", "rounded_up_by_s"),
    # gRPC sends three digits: 1.234 s as 1240 ms, 12.34 s as 12.4 s, 123.4 s as 124 s, 1234 s as 1240 s.
    [(0.1, 0.0), (1.234, 0.006), (12.34, 0.06), (123.4, 0.6), (1234.0, 6.0)],
)
def test_the_slack_covers_how_grpc_rounds_a_timeout(timeout_s: float, rounded_up_by_s: float) -> None:
    class Context:
        def time_remaining(self) -> float:
            return timeout_s + rounded_up_by_s

    deadline = Deadline.of(Context())
    assert deadline is not None
    assert rounded_up_by_s < deadline.slack_s <= 0.05 + 0.01 * timeout_s


@pytest.mark.usefixtures("quiet")
async def test_a_watch_whose_client_goes_is_no_error(engine: FakeEngine) -> None:
    async with observed_app(engine) as server:
        for _ in range(20):
            async with grpc.aio.insecure_channel(f"127.0.0.1:{server.app.port}") as channel:
                stub = budget_pb2_grpc.BudgetServiceStub(channel)  # type: ignore[no-untyped-call]
                watch = stub.WatchBudget(budget_pb2.WatchBudgetRequest(min_interval_s=0.001))
                await watch.read()
                engine.set_budget(step=_ + 1)


@pytest.mark.usefixtures("quiet")
async def test_a_unary_call_that_ends_under_its_answer_is_no_error(engine: FakeEngine) -> None:
    async with observed_app(engine) as server, RawClient(server.app.port, window=0) as client:
        streams = [client.call("/weir.v1.InferenceService/Complete", request().SerializeToString()) for _ in range(20)]
        await eventually(lambda: server.statuses() == {"OK": 20})
        for stream in streams[:10]:
            client.cancel(stream)
        await asyncio.sleep(0.1)
    await eventually(lambda: server.app.backlogs.bytes == 0)
