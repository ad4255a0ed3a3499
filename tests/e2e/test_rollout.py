"""A rollout under load: each server leaves the endpoints, serves on, gets SIGTERM; nothing fails, no token is lost."""

from __future__ import annotations

import asyncio
import itertools
import signal
from pathlib import Path

import pytest
from weir.client import AsyncClient

from tests.contract.server_process import ServerProcess

STREAMS = 200
LATE_STREAMS = 20
TOKENS = 128
PRE_STOP_S = 0.5
DRAIN_S = 180


class Endpoints:
    """Client-side round robin over the servers that are in the endpoints now."""

    def __init__(self) -> None:
        self._clients: dict[str, AsyncClient] = {}
        self._turns = itertools.count()

    def add(self, server: ServerProcess) -> None:
        self._clients[server.target] = AsyncClient(server.target, max_attempts=1)

    def remove(self, server: ServerProcess) -> AsyncClient:
        return self._clients.pop(server.target)

    def pick(self) -> AsyncClient:
        clients = list(self._clients.values())
        return clients[next(self._turns) % len(clients)]


async def stream(client: AsyncClient, number: int) -> list[int]:
    """The tokens of one stream; raises when it fails."""
    tokens: list[int] = []
    prompt = [1, *(2 + (number + k) % 250 for k in range(8))]
    async with client.generate(token_ids=prompt, max_tokens=TOKENS, ignore_eos=True) as deltas:
        async for delta in deltas:
            tokens.extend(delta.token_ids)
    return tokens


async def started(folder: Path, name: str) -> ServerProcess:
    place = folder / name
    place.mkdir()
    server = ServerProcess(place, "--max-running", "128", "--drain-timeout", str(DRAIN_S))
    (await asyncio.to_thread(server.ready)).close()
    return server


@pytest.mark.slow
async def test_no_stream_fails_and_no_token_is_lost_while_every_server_is_replaced(tmp_path: Path) -> None:
    endpoints = Endpoints()
    servers = [await started(tmp_path, "old-a"), await started(tmp_path, "old-b")]
    for server in servers:
        endpoints.add(server)
    numbers = itertools.count()
    running = [asyncio.create_task(stream(endpoints.pick(), next(numbers))) for _ in range(STREAMS)]
    try:
        for turn, server in enumerate(list(servers)):
            if turn:
                servers.append(await started(tmp_path, f"new-{turn}"))
                endpoints.add(servers[-1])
            # Clients that have not heard of the change yet still send to it: that is what preStop is for.
            leaving = endpoints.remove(server)
            late = [asyncio.create_task(stream(leaving, next(numbers))) for _ in range(LATE_STREAMS)]
            await asyncio.sleep(PRE_STOP_S)
            running += [asyncio.create_task(stream(endpoints.pick(), next(numbers))) for _ in range(LATE_STREAMS)]
            assert not all(task.done() for task in late), "SIGTERM found nothing in flight"
            running += late
            server.process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(server.process.wait, DRAIN_S + 10) == 0
        tokens = await asyncio.gather(*running)
    finally:
        for server in servers:
            server.process.kill()
    assert [len(found) for found in tokens] == [TOKENS] * (STREAMS + 4 * LATE_STREAMS)
