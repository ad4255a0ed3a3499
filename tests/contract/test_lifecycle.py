"""The end of a server: drained, hurried, or with its engine dead; and what clients and the exit code see."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from weir.client import AsyncClient, EngineFailedError, UnavailableError
from weir.config import ConfigError, ServerSettings, Settings
from weir.engine.errors import EngineFailedError as EngineDied
from weir.exit_codes import WRONG_USAGE
from weir.models.errors import TokenizerError
from weir.orca.load_report_pb2 import OrcaLoadReport
from weir.orca.service_pb2 import OrcaLoadReportRequest
from weir.server.app import App
from weir.v1 import admin_pb2, admin_pb2_grpc, budget_pb2, budget_pb2_grpc

from tests.contract.conftest import SETTINGS
from tests.contract.decode import eventually, refusal
from tests.contract.fake_engine import FakeEngine
from tests.contract.fake_tokenizer import ByteTokenizer


class Process:
    """App.run as the process runs it: with signal handlers, to an exit code."""

    def __init__(self, engine: FakeEngine, tokenizer: ByteTokenizer, drain_timeout_s: float) -> None:
        server = ServerSettings(host="127.0.0.1", port=0, admin_address="127.0.0.1:0", drain_timeout_s=drain_timeout_s)
        self.engine = engine
        self.app = App(Settings(server=server), engine, tokenizer)
        self.exit_code = asyncio.create_task(self.app.run())

    async def ready(self) -> AsyncClient:
        self.engine.load()
        await eventually(lambda: self.app.port > 0)
        client = AsyncClient(f"127.0.0.1:{self.app.port}", max_attempts=1)
        await client.wait_ready(5)
        return client

    def signal(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)


@pytest.fixture
async def process(engine: FakeEngine, tokenizer: ByteTokenizer) -> AsyncIterator[Process]:
    process = Process(engine, tokenizer, drain_timeout_s=30.0)
    yield process
    process.app.request_stop()
    process.app.request_stop()
    await process.exit_code


async def held_stream(client: AsyncClient, engine: FakeEngine):  # type: ignore[no-untyped-def]
    engine.decoding.clear()
    engine.ungated_tokens = 1
    stream = client.generate("abc", max_tokens=3)
    assert (await anext(stream)).text == "a"
    return stream


async def test_sigterm_lets_running_streams_finish_refuses_new_work_and_exits_0(process: Process) -> None:
    client = await process.ready()
    stream = await held_stream(client, process.engine)
    process.signal()
    await eventually(lambda: process.app.lifecycle.phase.value == "draining")
    assert not await client.health("readiness")
    assert await client.health("liveness")
    with pytest.raises(UnavailableError) as refused:
        await client.complete("x")
    assert refused.value.reason == "DRAINING"
    assert not process.exit_code.done()
    process.engine.decoding.set()
    assert [delta.text async for delta in stream] == ["b", "c"]
    assert stream.usage is not None
    assert await process.exit_code == 0
    assert process.engine.stopped
    await client.close()


async def test_a_queued_request_is_running_work_too(process: Process) -> None:
    client = await process.ready()
    process.engine.admitting.clear()
    queued = asyncio.create_task(client.complete("abc", max_tokens=3))
    await eventually(lambda: len(process.engine.streams) == 1)
    process.signal()
    await eventually(lambda: process.app.lifecycle.phase.value == "draining")
    process.engine.admitting.set()
    assert (await queued).text == "abc"
    assert await process.exit_code == 0
    await client.close()


async def test_a_second_sigterm_cuts_what_is_left_with_a_typed_error(process: Process) -> None:
    client = await process.ready()
    stream = await held_stream(client, process.engine)
    process.signal()
    await eventually(lambda: process.app.lifecycle.phase.value == "draining")
    process.signal()
    with pytest.raises(UnavailableError) as cut:
        await anext(stream)
    assert cut.value.reason == "DRAINING"
    assert await process.exit_code == 0
    assert not process.engine.streams
    await client.close()


async def test_the_drain_timeout_cuts_what_is_left(engine: FakeEngine, tokenizer: ByteTokenizer) -> None:
    process = Process(engine, tokenizer, drain_timeout_s=0.1)
    client = await process.ready()
    stream = await held_stream(client, engine)
    process.signal()
    with pytest.raises(UnavailableError) as cut:
        await anext(stream)
    assert cut.value.reason == "DRAINING"
    assert await process.exit_code == 0
    await client.close()


async def test_a_dead_engine_fails_every_stream_with_its_error_and_the_process_exits_1(process: Process) -> None:
    client = await process.ready()
    stream = await held_stream(client, process.engine)
    process.engine.admitting.clear()
    queued = asyncio.create_task(client.complete("x"))
    await eventually(lambda: len(process.engine.streams) == 2)
    process.engine.die("killed by signal 9")
    for failed in (anext(stream), queued):
        with pytest.raises(EngineFailedError) as caught:
            await failed
        assert "killed by signal 9" in caught.value.message
        assert caught.value.retry_after_s == 1.0
    assert await process.exit_code == 1
    await client.close()


async def test_an_engine_that_cannot_load_ends_the_process_with_1(process: Process) -> None:
    process.engine.fail_to_load(EngineDied("no such tensor: lm_head.weight"))
    assert await process.exit_code == 1


async def test_a_tokenizer_that_cannot_load_ends_the_process_as_a_wrong_setting_does(engine: FakeEngine) -> None:
    class Broken(ByteTokenizer):
        async def load(self) -> Sequence[bytes]:
            raise TokenizerError("tokenizer.json: no such file")

    app = App(SETTINGS, engine, Broken())
    engine.load()
    assert await app.run() == WRONG_USAGE


async def test_sigterm_while_loading_ends_at_once(process: Process) -> None:
    await eventually(lambda: process.app.port > 0)
    process.signal()
    async with asyncio.timeout(2):
        assert await process.exit_code == 0


async def test_open_watches_do_not_delay_the_end(process: Process) -> None:
    client = await process.ready()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{process.app.port}") as channel:
        health = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service="nope"))
        budget = budget_pb2_grpc.BudgetServiceStub(channel).WatchBudget(budget_pb2.WatchBudgetRequest())  # type: ignore[no-untyped-call]
        load = channel.unary_stream(
            "/xds.service.orca.v3.OpenRcaService/StreamCoreMetrics",
            request_serializer=OrcaLoadReportRequest.SerializeToString,
            response_deserializer=OrcaLoadReport.FromString,
        )(OrcaLoadReportRequest())
        watches = (health, budget, load)
        for watch in watches:
            await watch.read()
        began = time.monotonic()
        process.signal()
        assert await process.exit_code == 0
        # The bound is half of the grace that an open watch would have used up.
        assert time.monotonic() - began < 15.0
        # They ended by themselves, not by being cut.
        for watch in watches:
            async with asyncio.timeout(5):
                while await watch.read() is not grpc.aio.EOF:
                    pass
                assert await watch.code() is grpc.StatusCode.OK
    await client.close()


class TestAdmin:
    async def test_drain_answers_at_once_or_waits_for_what_is_in_flight(
        self, app: App, client: AsyncClient, engine: FakeEngine, admin_channel: grpc.aio.Channel
    ) -> None:
        admin = admin_pb2_grpc.AdminServiceStub(admin_channel)  # type: ignore[no-untyped-call]
        stream = await held_stream(client, engine)
        assert (await admin.Drain(admin_pb2.DrainRequest())).in_flight_requests == 1
        waiting = asyncio.create_task(_drain(admin, wait_s=30))
        assert not await client.health("readiness")
        engine.decoding.set()
        assert [delta.text async for delta in stream] == ["b", "c"]
        assert await waiting == 0

    async def test_resume_takes_work_again(
        self, app: App, client: AsyncClient, admin_channel: grpc.aio.Channel
    ) -> None:
        admin = admin_pb2_grpc.AdminServiceStub(admin_channel)  # type: ignore[no-untyped-call]
        await admin.Drain(admin_pb2.DrainRequest())
        await admin.Drain(admin_pb2.DrainRequest())
        with pytest.raises(UnavailableError):
            await client.complete("x")
        await admin.Resume(admin_pb2.ResumeRequest())
        assert (await client.complete("x", max_tokens=1)).text == "x"

    async def test_draining_while_the_model_loads_is_remembered(
        self, loading: App, engine: FakeEngine, admin_channel: grpc.aio.Channel
    ) -> None:
        admin = admin_pb2_grpc.AdminServiceStub(admin_channel)  # type: ignore[no-untyped-call]
        await admin.Drain(admin_pb2.DrainRequest())
        async with AsyncClient(f"127.0.0.1:{loading.port}", max_attempts=1) as client:
            assert not await client.health("liveness")
            engine.load()
            await eventually(lambda: loading.lifecycle.is_loaded)
            assert await client.health("liveness")
            assert not await client.health("readiness")
            await admin.Resume(admin_pb2.ResumeRequest())
            assert (await client.complete("x", max_tokens=1)).text == "x"

    async def test_resume_cannot_undo_a_shutdown(
        self, app: App, engine: FakeEngine, client: AsyncClient, admin_channel: grpc.aio.Channel
    ) -> None:
        app.lifecycle.shut_down()
        admin = admin_pb2_grpc.AdminServiceStub(admin_channel)  # type: ignore[no-untyped-call]
        refused = await refusal(admin.Resume(admin_pb2.ResumeRequest()))
        assert refused.code is grpc.StatusCode.FAILED_PRECONDITION

    async def test_flush_tells_how_many_blocks_it_freed(
        self, app: App, engine: FakeEngine, admin_channel: grpc.aio.Channel
    ) -> None:
        admin = admin_pb2_grpc.AdminServiceStub(admin_channel)  # type: ignore[no-untyped-call]
        assert (await admin.FlushPrefixCache(admin_pb2.FlushPrefixCacheRequest())).flushed_blocks == 7
        assert engine.flushes == 1

    async def test_the_public_port_knows_no_admin_service(self, app: App, channel: grpc.aio.Channel) -> None:
        admin = admin_pb2_grpc.AdminServiceStub(channel)  # type: ignore[no-untyped-call]
        refused = await refusal(admin.Drain(admin_pb2.DrainRequest()))
        assert refused.code is grpc.StatusCode.UNIMPLEMENTED

    @pytest.mark.parametrize("address", ["0.0.0.0:50052", "10.1.2.3:50052", "[::]:50052", "example.org:1", "50052"])
    async def test_an_address_that_others_can_reach_is_refused(self, engine: FakeEngine, address: str) -> None:
        server = ServerSettings(host="127.0.0.1", port=0, admin_address=address)
        app = App(Settings(server=server), engine, ByteTokenizer())
        with pytest.raises(ConfigError, match="admin-address"):
            await app.start()

    async def test_a_unix_socket_serves_as_well(self, engine: FakeEngine, tmp_path) -> None:  # type: ignore[no-untyped-def]
        target = f"unix:{tmp_path}/admin.sock"
        server = ServerSettings(host="127.0.0.1", port=0, admin_address=target)
        app = App(Settings(server=server), engine, ByteTokenizer())
        await app.start()
        async with grpc.aio.insecure_channel(target) as channel:
            admin = admin_pb2_grpc.AdminServiceStub(channel)  # type: ignore[no-untyped-call]
            assert (await admin.Drain(admin_pb2.DrainRequest())).in_flight_requests == 0
        await app.shut_down()


async def test_a_socket_that_another_server_listens_on_is_refused_and_stays_with_it(
    engine: FakeEngine, tmp_path: Path
) -> None:
    target = f"unix:{tmp_path}/admin.sock"
    settings = Settings(server=ServerSettings(host="127.0.0.1", port=0, admin_address=target))
    first = App(settings, engine, ByteTokenizer())
    await first.start()
    with pytest.raises(OSError, match="another server listens there"):
        await App(settings, FakeEngine(), ByteTokenizer()).start()
    async with grpc.aio.insecure_channel(target) as channel:
        admin = admin_pb2_grpc.AdminServiceStub(channel)  # type: ignore[no-untyped-call]
        await admin.Drain(admin_pb2.DrainRequest())
    assert first.lifecycle.phase.value == "draining"
    await first.shut_down()


async def test_a_socket_left_behind_by_a_server_that_was_killed_is_taken_over(
    engine: FakeEngine, tmp_path: Path
) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "admin.sock"))
    target = f"unix:{tmp_path}/admin.sock"
    app = App(Settings(server=ServerSettings(host="127.0.0.1", port=0, admin_address=target)), engine, ByteTokenizer())
    await app.start()
    async with grpc.aio.insecure_channel(target) as channel:
        admin = admin_pb2_grpc.AdminServiceStub(channel)  # type: ignore[no-untyped-call]
        assert (await admin.Drain(admin_pb2.DrainRequest())).in_flight_requests == 0
    await app.shut_down()


async def test_a_taken_port_is_an_error_not_a_shared_port(app: App, engine: FakeEngine) -> None:
    server = ServerSettings(host="127.0.0.1", port=app.port, admin_address="127.0.0.1:0")
    second = App(Settings(server=server), engine, ByteTokenizer())
    with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{app.port}"):
        await second.start()


async def _drain(admin: admin_pb2_grpc.AdminServiceStub, wait_s: float) -> int:
    return int((await admin.Drain(admin_pb2.DrainRequest(wait_s=wait_s))).in_flight_requests)
