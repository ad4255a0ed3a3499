"""How a client meets what is no server: nobody, a silent port, a proxy in the environment."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator

import pytest
from weir.client import AsyncClient, Client, DeadlineError, InvalidRequestError, UnavailableError, WeirError
from weir.server.app import App


@pytest.fixture
def silent() -> Iterator[str]:
    """A port that takes connections and never says a word."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(8)
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def test_a_port_that_never_speaks_is_unreachable_after_the_connect_timeout(silent: str) -> None:
    began = time.monotonic()
    with Client(silent, connect_timeout_s=0.2) as client, pytest.raises(UnavailableError) as caught:
        client.complete("x")
    # gRPC's own patience is 20 s.
    assert time.monotonic() - began < 10
    assert caught.value.reason is None
    assert caught.value.request_id


async def test_the_same_with_asyncio(silent: str) -> None:
    async with AsyncClient(silent, connect_timeout_s=0.2) as client:
        with pytest.raises(UnavailableError):
            await client.complete("x")


def test_a_timeout_shorter_than_connecting_is_a_timeout_with_the_id_that_was_sent(silent: str) -> None:
    with Client(silent) as client, pytest.raises(TimeoutError) as caught:
        client.complete("x", timeout_s=0.1, metadata=(("x-request-id", "mine"),))
    assert isinstance(caught.value, DeadlineError)
    assert caught.value.request_id == "mine"
    assert caught.value.message == "the timeout of 0.1 s passed"


@pytest.mark.parametrize("variable", ["http_proxy", "grpc_proxy", "https_proxy"])
async def test_loopback_is_reached_past_a_proxy(app: App, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_grpc_proxy", raising=False)
    monkeypatch.setenv(variable, "http://127.0.0.1:1")

    def ask() -> str:
        with Client(f"localhost:{app.port}") as client:
            return client.complete("ab", max_tokens=2).text

    assert await asyncio.to_thread(ask) == "ab"
    async with AsyncClient(f"127.0.0.1:{app.port}") as client:
        assert (await client.complete("ab", max_tokens=2)).text == "ab"


async def test_waiting_for_a_server_says_why_it_is_not_ready(loading: App) -> None:
    async with AsyncClient(f"127.0.0.1:{loading.port}") as client:
        with pytest.raises(TimeoutError, match=r"not ready within 0.2 s: it loads its model, or drains"):
            await client.wait_ready(0.2)
    with Client("127.0.0.1:1") as nobody, pytest.raises(WeirError, match=r"not ready within 0.2 s: .*refused"):
        nobody.wait_ready(0.2)


@pytest.mark.parametrize("kind", [Client, AsyncClient])
@pytest.mark.parametrize(
    "arguments",
    [
        {"target": "http://localhost:50051"},
        {"target": None},
        {"tenant": "é"},
        {"token": "a\nb"},
        {"max_attempts": 0},
        {"max_message_bytes": 2**40},
        {"connect_timeout_s": -1},
        {"credentials": "ca.pem"},
    ],
)
def test_a_client_of_wrong_arguments_is_not_made(
    kind: type[Client] | type[AsyncClient], arguments: dict[str, object]
) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        kind(**({"target": "localhost"} | arguments))  # type: ignore[arg-type]
    assert [violation.field for violation in caught.value.violations] == list(arguments)


async def test_every_method_refuses_what_it_cannot_send_by_name(app: App) -> None:
    target = f"127.0.0.1:{app.port}"
    with Client(target) as client:
        calls = {
            "params.seed": lambda: client.complete("x", seed=-1),
            "prompt.text": lambda: client.generate("\udcff"),
            "prompt.chat.messages[0].content": lambda: client.tokenize(messages=[{"role": "user"}]),
            "request_id": lambda: client.cancel(5),  # type: ignore[arg-type]
            "service": lambda: client.health(5),  # type: ignore[arg-type]
            "min_interval_s": lambda: next(client.watch_budget("often")),  # type: ignore[arg-type]
            "timeout_s": lambda: client.model(timeout_s=-1),
        }
        for field, call in calls.items():
            with pytest.raises(InvalidRequestError) as caught:
                call()
            assert [violation.field for violation in caught.value.violations] == [field]
    async with AsyncClient(target) as aio:
        waits = {
            "params.seed": aio.complete("x", seed=-1),
            "prompt.chat.messages[0].content": aio.tokenize(messages=[{"role": "user"}]),
            "request_id": aio.cancel(5),  # type: ignore[arg-type]
            "service": aio.health(5),  # type: ignore[arg-type]
            "min_interval_s": anext(aio.watch_budget("often")),  # type: ignore[arg-type]
            "timeout_s": aio.model(timeout_s=-1),
        }
        for field, wait in waits.items():
            with pytest.raises(InvalidRequestError) as caught:
                await wait
            assert [violation.field for violation in caught.value.violations] == [field]
        with pytest.raises(InvalidRequestError, match=r"prompt\.text"):
            aio.generate("\udcff")
