"""Clients that do not read: what waits for them is bounded, and they are told so once they look."""

from __future__ import annotations

import asyncio
import logging
import socket
from pathlib import Path

import pytest
from grpc_reflection.v1alpha import reflection_pb2
from weir.engine.request import TokenLogprobs
from weir.engine.unread import EVENT_BYTES, held_bytes
from weir.server.connections import close_connections
from weir.v1 import inference_pb2 as pb

from tests.contract.decode import eventually
from tests.contract.http2 import refusal_in
from tests.contract.observed_app import observed_app
from tests.contract.pushing_engine import PushingEngine, admitted, delta, done
from tests.contract.raw_client import RawClient

GENERATE = "/weir.v1.InferenceService/Generate"
COMPLETE = "/weir.v1.InferenceService/Complete"
KIB = 1024


def request(request_id: str, n: int = 1, logprobs: int | None = None, max_tokens: int = 50) -> bytes:
    params = pb.SamplingParams(max_tokens=max_tokens, logprobs=logprobs)
    prompt = pb.Prompt(token_ids=pb.TokenIds(ids=[1, 2, 3]))
    return pb.GenerateRequest(request_id=request_id, prompt=prompt, params=params, n=n).SerializeToString()


def answers(client: RawClient, stream: int) -> list[pb.GenerateResponse]:
    return [pb.GenerateResponse.FromString(message) for message in client.messages(stream)]


async def test_a_stream_that_nobody_reads_is_cut_at_its_bound_and_its_engine_work_cancelled_at_once() -> None:
    engine = PushingEngine()
    async with (
        observed_app(engine, max_stream_buffer_bytes=100 * KIB) as server,
        RawClient(server.app.port, 0) as client,
    ):
        stream = client.call(GENERATE, request("unread", logprobs=20))
        await engine.has("unread")
        engine.tell(admitted("unread"))
        await eventually(lambda: ":status" in client.headers[stream])
        token = 0
        while not engine.cancelled:
            engine.tell(delta("unread", token, alternatives=20))
            token += 1
            await asyncio.sleep(0)
            assert server.app.backlogs.bytes <= 120 * KIB
        assert engine.cancelled == ["unread"]
        await eventually(lambda: not len(server.app.live))
        # gRPC still holds the call with the message that was on its way, and nothing else waits.
        assert server.app.backlogs.bytes <= (64 + 16) * KIB
        assert server.statuses() == {"RESOURCE_EXHAUSTED": 1}
        assert server.telemetry.metrics.requests.slow_readers.value == 1
        assert stream not in client.ended

        client.grant(stream, 2**20)
        await eventually(lambda: stream in client.ended)
        refused = refusal_in(client.headers[stream])
        assert refused.code == 8
        assert refused.reason == "CLIENT_TOO_SLOW"
        assert refused.pushback == "-1"
        assert client.headers[stream]["x-request-id"] == "unread"
        await eventually(lambda: server.app.backlogs.bytes == 0)


async def test_a_stream_that_is_cut_as_it_begins_still_tells_its_client() -> None:
    """gRPC gives no status to a call whose headers are half sent."""
    engine = PushingEngine()
    async with observed_app(engine, max_stream_buffer_bytes=10 * KIB) as server, RawClient(server.app.port) as client:
        streams = []
        for number in range(30):
            streams.append(client.call(GENERATE, request(f"r{number}", logprobs=20)))
            await engine.has(f"r{number}")
            engine.tell(admitted(f"r{number}"))
            for _ in range(number % 3):
                await asyncio.sleep(0)
            engine.tell(*(delta(f"r{number}", token, alternatives=20) for token in range(10)))
        await eventually(lambda: client.ended >= set(streams))
        assert {refusal_in(client.headers[stream]).reason for stream in streams} == {"CLIENT_TOO_SLOW"}


async def test_what_a_late_reader_gets_is_the_whole_answer_in_fewer_messages() -> None:
    engine = PushingEngine()
    async with observed_app(engine) as server, RawClient(server.app.port, 0) as client:
        stream = client.call(GENERATE, request("late", n=2, logprobs=2))
        await engine.has("late")
        engine.tell(admitted("late"))
        for token in range(1000):
            for choice in range(2):
                engine.tell(delta("late", token, choice, alternatives=2, last=token == 999))
        engine.tell(done("late"))
        await eventually(lambda: server.app.backlogs.bytes > 1000)
        client.grant(stream, 2**20)
        await eventually(lambda: stream in client.ended)
        got = answers(client, stream)
        assert client.headers[stream]["grpc-status"] == "0"
        for choice in range(2):
            deltas = [d for message in got for d in message.deltas if d.choice == choice]
            assert [token for d in deltas for token in d.token_ids] == list(range(1000))
            assert "".join(d.text for d in deltas) == "".join(f"<{token}>" for token in range(1000))
            assert [p.token_id for d in deltas for p in d.logprobs] == list(range(1000))
            assert [len(p.top) for d in deltas for p in d.logprobs] == [2] * 1000
            assert [d.HasField("finish") for d in deltas] == [False] * (len(deltas) - 1) + [True]
        assert got[0].HasField("started")
        assert got[-1].HasField("done")
        # Two thousand tokens; of each choice the messages are as full as a message may be.
        assert len(got) < 20
        assert all(message.ByteSize() <= 64 * KIB for message in got)
        await eventually(lambda: server.app.backlogs.bytes == 0)


async def test_a_reader_that_keeps_up_gets_every_event_as_it_was() -> None:
    engine = PushingEngine()
    async with observed_app(engine) as server, RawClient(server.app.port) as client:
        stream = client.call(GENERATE, request("quick"))
        await engine.has("quick")
        engine.tell(admitted("quick"))
        for token in range(20):
            engine.tell(delta("quick", token, last=token == 19))
            await eventually(lambda seen=token: len(client.messages(stream)) == seen + 2 or seen == 19)  # type: ignore[misc]
        engine.tell(done("quick"))
        await eventually(lambda: stream in client.ended)
        assert [list(d.token_ids) for message in answers(client, stream) for d in message.deltas] == [
            [token] for token in range(20)
        ]


async def test_a_stream_whose_reader_takes_nothing_for_too_long_is_cut_however_little_waits() -> None:
    engine = PushingEngine()
    async with observed_app(engine, unread_timeout_s=0.2) as server, RawClient(server.app.port, 0) as client:
        streams = [client.call(GENERATE, request(f"r{number}")) for number in range(3)]
        for number in range(3):
            await engine.has(f"r{number}")
            # Also when the engine is done with it: the answer is whole, and waits.
            engine.tell(admitted(f"r{number}"), delta(f"r{number}", 5, last=True), done(f"r{number}"))
        await eventually(lambda: server.statuses() == {"RESOURCE_EXHAUSTED": 3})
        for stream in streams:
            client.grant(stream, 1000)
        await eventually(lambda: client.ended >= set(streams))
        assert {client.headers[stream]["grpc-status"] for stream in streams} == {"8"}


async def test_a_slow_stream_that_still_reads_is_not_cut_for_its_time() -> None:
    engine = PushingEngine()
    async with observed_app(engine, unread_timeout_s=0.5) as server, RawClient(server.app.port, 0) as client:
        stream = client.call(GENERATE, request("slow"))
        await engine.has("slow")
        engine.tell(admitted("slow"))
        # Always behind, a message is taken now and then, for twice as long as a stream may stand still.
        for token in range(10):
            engine.tell(delta("slow", token, last=token == 9))
            client.grant(stream, 20)
            await asyncio.sleep(0.1)
        engine.tell(done("slow"))
        client.grant(stream, 1000)
        await eventually(lambda: stream in client.ended)
        assert client.headers[stream]["grpc-status"] == "0"


async def test_when_all_hold_too_much_those_that_stand_still_go_first_and_the_reader_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("weir.server.backlog.STALLED_AFTER_S", 0.1)
    engine = PushingEngine()
    async with (
        observed_app(engine, max_buffer_bytes=350 * KIB, unread_timeout_s=20.0) as server,
        RawClient(server.app.port, 0) as greedy,
        RawClient(server.app.port, 0) as modest,
        RawClient(server.app.port) as reader,
    ):
        calls = {name: greedy.call(GENERATE, request(name, logprobs=20)) for name in ("g1", "g2", "g3")}
        small = modest.call(GENERATE, request("small", logprobs=20))
        read = reader.call(GENERATE, request("read"))
        for name in (*calls, "small", "read"):
            await engine.has(name)
            engine.tell(admitted(name))
        for token in range(20):  # about 50 KiB of the small one, and 150 KiB of each greedy one
            engine.tell(delta("small", token, alternatives=20))
            for name in calls:
                engine.tell(*(delta(name, token, alternatives=20) for _ in range(3)))
        await eventually(lambda: len(engine.cancelled) >= 2)
        await eventually(lambda: server.app.backlogs.bytes <= 350 * KIB)
        assert set(engine.cancelled) < set(calls)
        engine.tell(delta("read", 1, last=True), done("read"))
        await eventually(lambda: read in reader.ended)
        assert reader.headers[read]["grpc-status"] == "0"
        assert small not in modest.ended
        assert "small" not in engine.cancelled


async def test_a_connection_that_leaves_its_cut_streams_unread_gets_no_further_calls_and_others_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("weir.server.backlog.STALLED_AFTER_S", 0.1)
    engine = PushingEngine()
    async with (
        observed_app(engine, unread_timeout_s=0.5, max_stream_buffer_bytes=40 * KIB) as server,
        RawClient(server.app.port, 0) as client,
        RawClient(server.app.port) as other,
    ):
        streams = [client.call(GENERATE, request(f"r{number}")) for number in range(3)]
        for number in range(3):
            await engine.has(f"r{number}")
            engine.tell(admitted(f"r{number}"))
        # While another one of its streams goes on, it is not closed.
        client.call(GENERATE, request("going on"))
        await engine.has("going on")
        await eventually(lambda: server.statuses() == {"RESOURCE_EXHAUSTED": 3})
        await asyncio.sleep(0.3)
        for method in (GENERATE, COMPLETE):
            refused = client.call(method, request("more"))
            await eventually(lambda ended=refused: ended in client.ended)  # type: ignore[misc]
            assert refusal_in(client.headers[refused]).reason == "CLIENT_TOO_SLOW"
        assert "more" not in engine.readers
        other.call(GENERATE, request("other"))
        await engine.has("other")
        for stream in streams:
            client.grant(stream, 1000)
        await eventually(lambda: client.ended >= set(streams))
        await asyncio.sleep(0.3)
        client.call(GENERATE, request("again"))
        await engine.has("again")


async def test_a_unary_answer_that_nobody_takes_counts_until_it_is_taken() -> None:
    engine = PushingEngine()
    async with observed_app(engine) as server, RawClient(server.app.port, 0) as client:
        stream = client.call(COMPLETE, request("whole", logprobs=20))
        await engine.has("whole")
        engine.tell(
            admitted("whole"), *(delta("whole", token, alternatives=20, last=token == 49) for token in range(50))
        )
        engine.tell(done("whole"))
        await eventually(lambda: server.statuses() == {"OK": 1})
        # 50 tokens of 20 alternatives: 11 KiB on the wire, some 45 KiB as a message in memory.
        assert 20 * KIB < server.app.backlogs.bytes < 100 * KIB
        client.grant(stream, 2**20)
        await eventually(lambda: stream in client.ended)
        await eventually(lambda: server.app.backlogs.bytes == 0)


async def test_while_answers_hold_all_there_is_new_calls_are_told_to_come_back() -> None:
    engine = PushingEngine()
    async with observed_app(engine, max_buffer_bytes=30 * KIB) as server, RawClient(server.app.port, 0) as client:
        first = client.call(COMPLETE, request("whole", logprobs=20))
        await engine.has("whole")
        engine.tell(
            admitted("whole"), *(delta("whole", token, alternatives=20, last=token == 49) for token in range(50))
        )
        engine.tell(done("whole"))
        await eventually(lambda: server.app.backlogs.bytes > 30 * KIB)
        second = client.call(COMPLETE, request("next"))
        await eventually(lambda: second in client.ended)
        refused = refusal_in(client.headers[second])
        assert (refused.code, refused.reason, refused.pushback) == (14, "OUTPUT_BUFFER_FULL", "1000")
        client.grant(first, 2**20)
        await eventually(lambda: server.app.backlogs.bytes == 0)
        client.call(COMPLETE, request("later"))
        await engine.has("later")


async def test_a_connection_that_reads_nothing_at_all_is_closed_and_one_that_generates_is_not() -> None:
    engine = PushingEngine()
    async with (
        observed_app(engine, unread_timeout_s=0.2) as server,
        RawClient(server.app.port, 0) as dead,
        RawClient(server.app.port, 0) as shared,
        RawClient(server.app.port) as other,
    ):
        going_on = shared.call(GENERATE, request("going on"))
        await engine.has("going on")
        unread = {"d1": dead, "d2": dead, "s1": shared}
        for name, client in unread.items():
            client.call(GENERATE, request(name))
            await engine.has(name)
            engine.tell(admitted(name))
        dead.call(COMPLETE, request("unary"))
        await engine.has("unary")
        engine.tell(admitted("unary"), delta("unary", 1, last=True), done("unary"))
        watch = dead.call("/weir.v1.BudgetService/WatchBudget", b"")
        await eventually(lambda: dead.closed.is_set())
        assert watch not in dead.ended
        await asyncio.sleep(0.5)
        assert not shared.closed.is_set()
        assert not other.closed.is_set()
        # What its cut calls held is given back; of the other connection one call is left unread.
        await eventually(lambda: server.app.backlogs.bytes < 20 * KIB)
        engine.tell(admitted("going on"), delta("going on", 1, last=True), done("going on"))
        shared.grant(going_on, 1000)
        await eventually(lambda: going_on in shared.ended)
        assert shared.headers[going_on]["grpc-status"] == "0"
        await eventually(lambda: shared.closed.is_set())
        await eventually(lambda: server.app.backlogs.bytes == 0)


@pytest.mark.parametrize("peer", ["unix:", "unix:/tmp/x", "ipv4:127.0.0.1:1", "ipv6:%5B::1%5D:1", "", "ipv4:localhost"])
def test_a_peer_that_is_not_there_closes_nothing(peer: str) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    assert close_connections({peer}) == 0
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.parametrize(
    ("listening", "name"), [("::1", "ipv6:%5B::1%5D:{}"), ("::ffff:127.0.0.1", "ipv4:127.0.0.1:{}")]
)
def test_a_connection_is_found_by_the_name_that_grpc_gives_its_peer(listening: str, name: str) -> None:
    with socket.socket(socket.AF_INET6) as listener:
        listener.bind((listening, 0))
        listener.listen()
        with socket.create_connection(listener.getsockname()[:2]) as client, listener.accept()[0] as server:
            assert close_connections({name.format(client.getsockname()[1])}) == 1
            assert client.recv(1) == b""
            assert server.recv(1) == b""


async def test_watches_that_nobody_reads_end_too() -> None:
    engine = PushingEngine()
    async with observed_app(engine, unread_timeout_s=0.25) as server, RawClient(server.app.port, 0) as client:
        watches = [
            client.call("/weir.v1.BudgetService/WatchBudget", b""),
            client.call("/grpc.health.v1.Health/Watch", b""),
            client.call("/xds.service.orca.v3.OpenRcaService/StreamCoreMetrics", b""),
            client.call(
                "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
                reflection_pb2.ServerReflectionRequest(list_services="").SerializeToString(),
                end_stream=False,
            ),
        ]
        await eventually(lambda: all(":status" in client.headers[watch] for watch in watches))
        # Opened late, the window lets the message through, and then the status: the server had given up before.
        await asyncio.sleep(0.3)
        for watch in watches:
            client.grant(watch, 1000)
        await eventually(lambda: client.ended >= set(watches))
        assert {refusal_in(client.headers[watch]).reason for watch in watches} == {"CLIENT_TOO_SLOW"}
        await eventually(lambda: server.app.backlogs.bytes == 0)


async def test_shutting_down_does_not_wait_for_who_does_not_read(caplog: pytest.LogCaptureFixture) -> None:
    engine = PushingEngine()
    with caplog.at_level(logging.WARNING):
        async with observed_app(engine) as server, RawClient(server.app.port, 0) as client:
            for number in range(5):
                client.call(GENERATE, request(f"r{number}"))
                await engine.has(f"r{number}")
                engine.tell(admitted(f"r{number}"), delta(f"r{number}", 1))
            await eventually(lambda: server.app.backlogs.bytes > 0)
            await server.app.shut_down()
    assert server.statuses() == {"UNAVAILABLE": 5}
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
    assert engine.stopped
    assert server.app.backlogs.bytes == 0


def test_joining_deltas_saves_one_event_each_and_nothing_else() -> None:
    one, two = delta("r", 1, alternatives=20), delta("r", 2, alternatives=20)
    both = one._replace(token_ids=(1, 2), text="<1><2>", logprobs=(*one.logprobs, *two.logprobs))
    assert held_bytes(one) + held_bytes(two) - EVENT_BYTES == held_bytes(both)
    scores = (None, TokenLogprobs(1, -1.0, ((1, -1.0),)))
    assert held_bytes(one._replace(prompt_logprobs=scores)) > held_bytes(one)
