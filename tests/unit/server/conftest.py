"""What tests of TLS and of tokens share."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc
import pytest
from grpc_health.v1 import health_pb2_grpc
from weir.config import ServerSettings
from weir.server.security import bind
from weir.server.tokens import Callers, token_file

from tests.unit.server.echo_server import Echo, Health, Serve


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    servers: list[grpc.aio.Server] = []

    async def start(settings: ServerSettings) -> int:
        server = grpc.aio.server(interceptors=Callers(token_file(settings)).interceptors())
        health_pb2_grpc.add_HealthServicer_to_server(Health(), server)
        server.add_generic_rpc_handlers((Echo(),))
        port = bind(server, "127.0.0.1:0", settings)
        await server.start()
        servers.append(server)
        return port

    yield start
    for server in servers:
        await server.stop(0)
