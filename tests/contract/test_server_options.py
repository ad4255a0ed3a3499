"""Channel arguments that decide over calls before any handler sees them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
from grpc._cython import cygrpc
from weir.client.channel import channel_options
from weir.config import ServerSettings
from weir.server.options import server_options

from tests.contract.raw_client import RawClient


def test_one_message_limit_holds_in_both_directions() -> None:
    options = dict(server_options(ServerSettings(max_message_bytes=123_456), 10))
    assert options["grpc.max_receive_message_length"] == options["grpc.max_send_message_length"] == 123_456


def test_grpc_knows_every_argument_that_server_and_client_give_it() -> None:
    """It ignores unknown names, so a wrong one is a limit that does not hold."""
    library = Path(cygrpc.__file__).read_bytes()
    settings = ServerSettings(max_connection_age_s=90)
    names = [name for name, _ in (*server_options(settings, 10), *channel_options(1))]
    assert [name for name in names if name.encode() not in library] == []
    assert b"grpc.http2.min_recv_ping_interval_without_data_ms" not in library  # what other languages call it


@asynccontextmanager
async def held_call(min_ping_interval_ms: int | None = None) -> AsyncIterator[RawClient]:
    """A client whose unary call is never answered, on a server with our arguments."""

    async def forever(request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        await asyncio.Event().wait()
        return b""

    given = {} if min_ping_interval_ms is None else {"min_ping_interval_ms": min_ping_interval_ms}
    server = grpc.aio.server(options=server_options(ServerSettings(), 10, **given))
    handler = grpc.unary_unary_rpc_method_handler(forever)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Held", {"Call": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with RawClient(port) as client:
        client.call("/test.Held/Call", b"")
        yield client
    await server.stop(None)


async def test_a_client_may_ping_as_often_as_the_interval_says_while_its_unary_call_waits() -> None:
    async with held_call(min_ping_interval_ms=50) as client:
        for _ in range(20):
            client.ping()
            await asyncio.sleep(0.06)
        assert client.goaway is None
        assert not client.closed.is_set()


async def test_a_client_that_pings_without_a_pause_is_sent_away() -> None:
    async with held_call() as client:
        async with asyncio.timeout(10):
            while client.goaway is None:
                client.ping()
                await asyncio.sleep(0.01)
        assert client.goaway == b"too_many_pings"


def test_the_interval_is_half_of_what_common_clients_use() -> None:
    """grpc-go and others sit on exactly 10 s, and a ping may come a little early."""
    options = dict(server_options(ServerSettings(), 10))
    assert options["grpc.http2.min_ping_interval_without_data_ms"] == 5_000
    assert options["grpc.keepalive_permit_without_calls"] == 1
    # gRPC's own default: two early pings are borne, and forgotten with the next data.
    assert "grpc.http2.max_ping_strikes" not in options


def test_a_peer_that_answers_no_ping_is_gone_within_15_seconds() -> None:
    options = dict(server_options(ServerSettings(), 10))
    assert options["grpc.keepalive_time_ms"] + options["grpc.keepalive_timeout_ms"] == 15_000
    assert options["grpc.http2.ping_timeout_ms"] == 5_000


def test_our_own_client_pings_no_faster_than_our_server_allows() -> None:
    allowed = dict(server_options(ServerSettings(), 10))["grpc.http2.min_ping_interval_without_data_ms"]
    assert dict(channel_options(1))["grpc.keepalive_time_ms"] >= allowed


def test_connections_live_for_ever_unless_an_age_is_set() -> None:
    assert "grpc.max_connection_age_ms" not in dict(server_options(ServerSettings(), 10))
    assert dict(server_options(ServerSettings(max_connection_age_s=90), 10))["grpc.max_connection_age_ms"] == 90_000
