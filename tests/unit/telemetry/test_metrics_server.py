"""The metrics port as scrapers use it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from weir.config import ServerSettings
from weir.telemetry import metrics_server
from weir.telemetry.metrics_server import MAX_CONNECTIONS, MetricsServer


def render(accept: str) -> tuple[bytes, str]:
    return f"accept={accept}\n".encode(), "text/plain; version=0.0.4"


@pytest.fixture
async def port() -> AsyncIterator[int]:
    server = MetricsServer(render)
    yield await server.start("127.0.0.1", 0)
    await server.stop()


async def exchange(port: int, *requests: str) -> list[tuple[int, dict[str, str], bytes]]:
    """Send requests over one connection; the status, headers and body of each answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answers = []
    for request in requests:
        writer.write(request.encode())
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        status, *lines = head.strip().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines)
        body = b"" if request.startswith("HEAD") else await reader.readexactly(int(headers["Content-Length"]))
        answers.append((int(status.split()[1]), headers, body))
    writer.close()
    return answers


async def test_a_scrape_without_accept_gets_the_text_format(port: int) -> None:
    [(status, headers, body)] = await exchange(port, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (status, body) == (200, b"accept=\n")
    assert headers["Content-Type"] == "text/plain; version=0.0.4"


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
async def test_the_default_host_answers_on_both_families(address: str) -> None:
    server = MetricsServer(render)
    port = await server.start(ServerSettings().metrics_host, 0)
    reader, writer = await asyncio.open_connection(address, port)
    writer.write(b"GET /metrics HTTP/1.0\r\n\r\n")
    assert (await reader.read()).endswith(b"accept=\n")
    writer.close()
    await server.stop()


async def test_a_connection_serves_many_scrapes(port: int) -> None:
    scrape = "GET /metrics?x=1 HTTP/1.1\r\nACCEPT:  application/openmetrics-text \r\n\r\n"
    answers = await exchange(port, scrape, scrape, "HEAD /metrics HTTP/1.1\r\n\r\n", scrape)
    assert [answer[2] for answer in answers] == [b"accept=application/openmetrics-text\n"] * 2 + [
        b"",
        b"accept=application/openmetrics-text\n",
    ]
    assert answers[2][1]["Content-Length"] == "8"


async def test_http_1_0_closes_after_the_answer(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /metrics HTTP/1.0\r\n\r\n")
    assert (await reader.read()).endswith(b"\r\n\r\naccept=\n")
    writer.close()


@pytest.mark.parametrize(
    ("request_text", "status"),
    [
        ("GET /other HTTP/1.1\r\n\r\n", 404),
        ("POST /metrics HTTP/1.1\r\nContent-Length: 0\r\n\r\n", 405),
        ("nonsense\r\n\r\n", 400),
        ("GET /metrics HTTP/2.0\r\n\r\n", 400),
        (f"GET /metrics HTTP/1.1\r\nX: {'x' * 40000}\r\n\r\n", 431),
    ],
)
async def test_what_is_no_scrape_is_told_so(port: int, request_text: str, status: int) -> None:
    assert (await exchange(port, request_text))[0][0] == status


@pytest.mark.parametrize("beginning", [b"", b"GET /metrics HTT", b"GET /metrics HTTP/1.1\r\n\r\n"])
async def test_connections_are_bounded_and_those_that_ask_for_nothing_keep_no_scraper_out(
    port: int, beginning: bytes
) -> None:
    held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(MAX_CONNECTIONS)]
    for _, writer in held:
        writer.write(beginning)
    # The last is answered in the order of the connections, so all are known to the server.
    await exchange(port, "GET /metrics HTTP/1.1\r\n\r\n")
    for _ in range(3):
        [(status, _, body)] = await exchange(port, "GET /metrics HTTP/1.1\r\n\r\n")
        assert (status, body) == (200, b"accept=\n")
    # One made room, that of whom nothing was heard for the longest time.
    async with asyncio.timeout(5):
        await held[0][0].read()
    for _, writer in held:
        writer.close()


async def test_a_request_that_does_not_come_whole_is_given_up(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_server, "HEAD_TIMEOUT_S", 0.1)
    for beginning in (b"", b"GET /metrics HTTP/1.1\r\nX: "):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(beginning)
        async with asyncio.timeout(5):
            assert await reader.read() == b""
        writer.close()


async def test_a_scraper_may_pause_longer_than_a_request_may_take(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_server, "HEAD_TIMEOUT_S", 0.1)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for _ in range(2):
        writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert (await reader.readuntil(b"accept=\n")).startswith(b"HTTP/1.1 200 ")
        await asyncio.sleep(0.3)
    writer.close()


async def test_stop_closes_connections_that_are_kept_alive() -> None:
    server = MetricsServer(render)
    port = await server.start("127.0.0.1", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
    await reader.readuntil(b"accept=\n")
    await server.stop()
    assert await reader.read() == b""
    writer.close()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)
