"""However a reader leaves a stream, its request ends; and whoever reads on is told, not cheated."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator
from contextlib import aclosing

import pytest
from weir.client import AsyncClient, AsyncTokenStream, Client, ClientStateError, RequestCancelledError, TokenStream
from weir.engine.errors import QueueFullError
from weir.server.app import App

from tests.contract.decode import eventually
from tests.contract.fake_engine import FakeEngine


@pytest.fixture
def held(engine: FakeEngine) -> FakeEngine:
    """Streams that get their first token and then wait."""
    engine.decoding.clear()
    engine.ungated_tokens = 1
    return engine


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    """What only the garbage collector would end would run for as long as it pleases."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def leave_by_break(stream: TokenStream) -> None:
    for _ in stream:
        break


def leave_by_return(stream: TokenStream) -> str:
    for delta in stream:
        return delta.text
    return ""


def leave_by_error(stream: TokenStream) -> None:
    try:
        for _ in stream:
            raise KeyError
    except KeyError:
        pass


def leave_the_with_block(stream: TokenStream) -> None:
    with stream:
        next(stream)


@pytest.mark.parametrize("leave", [leave_by_break, leave_by_return, leave_by_error, leave_the_with_block])
async def test_leaving_a_loop_ends_the_request_while_the_stream_still_lives(
    app: App, held: FakeEngine, leave: Callable[[TokenStream], object]
) -> None:
    with Client(f"127.0.0.1:{app.port}") as client:
        stream = client.generate("abc")
        await asyncio.to_thread(leave, stream)
        await eventually(lambda: not held.streams)
        del stream


async def test_breaking_out_of_an_async_loop_ends_the_request_while_the_stream_still_lives(
    client: AsyncClient, held: FakeEngine
) -> None:
    stream = client.generate("abc")
    async for _ in stream:
        break
    await eventually(lambda: not held.streams)
    with pytest.raises(RequestCancelledError, match="leaving the loop over this stream cancelled it"):
        await anext(stream)


async def test_a_second_loop_after_a_break_is_an_error_and_no_short_answer(app: App, held: FakeEngine) -> None:
    def read_twice() -> None:
        with Client(f"127.0.0.1:{app.port}") as client:
            stream = client.generate("abc", request_id="r")
            leave_by_break(stream)
            with pytest.raises(RequestCancelledError) as caught:
                list(stream)
            assert caught.value.request_id == "r"

    await asyncio.to_thread(read_twice)


async def test_single_deltas_may_be_taken_and_the_rest_read_in_a_loop(app: App, engine: FakeEngine) -> None:
    def read() -> list[str]:
        with Client(f"127.0.0.1:{app.port}") as client:
            stream = client.generate("abc", max_tokens=3)
            return [next(stream).text, "".join(delta.text for delta in stream)]

    assert await asyncio.to_thread(read) == ["a", "bc"]


async def test_leaving_a_loop_at_the_last_delta_leaves_a_whole_answer(client: AsyncClient) -> None:
    stream = client.generate("abc", max_tokens=3)
    async for delta in stream:
        if delta.finish_reason is not None:
            break
    assert stream.usage is not None
    assert [delta async for delta in stream] == []


async def test_dropping_a_stream_whose_call_was_made_twice_ends_the_request(app: App, held: FakeEngine) -> None:
    """The error of the first attempt must not keep the stream alive."""
    refusals = [QueueFullError(20, 4, 100, 5, 0.01)]
    reserve = held.reserve

    def refuse_once(tokens: int, tenant: str):  # type: ignore[no-untyped-def]
        if refusals:
            raise refusals.pop()
        return reserve(tokens, tenant)

    held.reserve = refuse_once  # type: ignore[method-assign]

    def drop() -> None:
        stream = sync_client.generate("abc")
        assert next(stream).text == "a"

    with Client(f"127.0.0.1:{app.port}") as sync_client:
        await asyncio.to_thread(drop)
        await eventually(lambda: not held.streams)
    refusals.append(QueueFullError(20, 4, 100, 5, 0.01))
    async with AsyncClient(f"127.0.0.1:{app.port}") as client:
        stream = client.generate("abc")
        assert (await anext(stream)).text == "a"
        del stream
        await eventually(lambda: not held.streams)


async def test_a_stream_that_is_closed_while_its_client_waits_to_try_again_never_starts(
    app: App, engine: FakeEngine
) -> None:
    engine.reserve_error = QueueFullError(20, 4, 100, 5, 0.2)
    async with AsyncClient(f"127.0.0.1:{app.port}") as client:
        stream = client.generate("abc")
        reading = asyncio.create_task(_all(stream))
        await asyncio.sleep(0.1)
        stream.close()
        engine.reserve_error = None
        assert await reading == []
    assert engine.submitted == []


async def test_a_reader_whose_stream_another_task_closes_reaches_its_end(client: AsyncClient, held: FakeEngine) -> None:
    stream = client.generate("abc")
    reading = asyncio.create_task(_all(stream))
    await eventually(lambda: len(held.streams) == 1)
    stream.close()
    await reading
    await eventually(lambda: not held.streams)


async def test_a_client_that_is_closed_ends_its_calls_with_an_error_and_not_the_task_that_waits(
    app: App, held: FakeEngine
) -> None:
    client = AsyncClient(f"127.0.0.1:{app.port}")

    async def watch() -> None:
        async for _ in client.watch_budget(20.0):
            pass

    calls = [asyncio.create_task(call) for call in (_all(client.generate("abc")), client.complete("abc"), watch())]
    await eventually(lambda: len(held.streams) == 2)
    await asyncio.sleep(0.05)
    await client.close()
    ends = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(end) for end in ends] == [RequestCancelledError] * 3
    assert {str(end) for end in ends} == {"CANCELLED: the client was closed"}


async def test_a_task_that_is_cancelled_stays_cancelled(client: AsyncClient, held: FakeEngine) -> None:
    stream = client.generate("abc")
    for call in (_all(stream), client.complete("abc")):
        task = asyncio.create_task(call)
        await eventually(lambda: len(held.streams) == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await eventually(lambda: not held.streams)


async def test_closing_helpers_of_the_standard_library_work(client: AsyncClient, held: FakeEngine) -> None:
    async with aclosing(client.generate("abc")) as stream:
        await anext(stream)
    await eventually(lambda: not held.streams)


async def test_the_id_of_a_stream_is_known_before_its_first_delta(client: AsyncClient, engine: FakeEngine) -> None:
    engine.admitting.clear()
    stream = client.generate("abc")
    reading = asyncio.create_task(_all(stream))
    await eventually(lambda: len(engine.streams) == 1)
    assert stream.request_id == engine.submitted[0].request_id
    assert await client.cancel(stream.request_id)
    with pytest.raises(RequestCancelledError):
        await reading


def test_a_client_for_asyncio_can_be_made_before_there_is_a_loop_and_used_in_one_only() -> None:
    client = AsyncClient("127.0.0.1:1")

    async def use() -> str:
        try:
            await client.model()
        except Exception as error:
            return type(error).__name__
        return ""

    assert asyncio.run(use()) == "UnavailableError"
    assert asyncio.run(use()) == "ClientStateError"
    with pytest.raises(ClientStateError, match="inside a running event loop"):
        client.generate("x")


async def test_a_closed_client_says_so(app: App) -> None:
    client = AsyncClient(f"127.0.0.1:{app.port}")
    await client.model()
    await client.close()
    for call in (client.complete("x"), client.budget(), client.health(), anext(client.watch_budget())):
        with pytest.raises(ClientStateError):
            await call
    with pytest.raises(ClientStateError):
        client.generate("x")
    threads = Client(f"127.0.0.1:{app.port}")
    threads.close()
    for make in (lambda: threads.complete("x"), lambda: threads.generate("x"), lambda: next(threads.watch_budget())):
        with pytest.raises(ClientStateError):
            make()


async def _all(stream: AsyncTokenStream) -> list[str]:
    return [delta.text async for delta in stream]
