"""However a call ends, the engine hears of it at once, and ticket, stream and id are given back."""

from __future__ import annotations

import asyncio
import gc

import grpc
import pytest
from weir.client import AsyncClient, Client, DeadlineError, RequestCancelledError
from weir.server.app import App
from weir.v1 import inference_pb2 as pb
from weir.v1 import inference_pb2_grpc

from tests.contract.decode import eventually, refusal
from tests.contract.fake_engine import FakeEngine
from tests.contract.fake_tokenizer import ByteTokenizer


def nothing_held(app: App, engine: FakeEngine) -> bool:
    return engine.gate.requests == 0 and engine.gate.tokens == 0 and not engine.streams and len(app.live) == 0


async def decoding(client: AsyncClient, engine: FakeEngine, **options: object):  # type: ignore[no-untyped-def]
    """A stream that has its first token and waits for the second."""
    engine.decoding.clear()
    engine.ungated_tokens = 1
    stream = client.generate("abcdef", **options)  # type: ignore[arg-type]
    assert (await anext(stream)).text == "a"
    return stream


async def test_closing_the_stream_cancels_while_decoding(app: App, client: AsyncClient, engine: FakeEngine) -> None:
    stream = await decoding(client, engine)
    assert len(engine.streams) == 1
    stream.close()
    await eventually(lambda: nothing_held(app, engine))


async def test_leaving_the_with_block_cancels(app: App, client: AsyncClient, engine: FakeEngine) -> None:
    async with await decoding(client, engine):
        pass
    await eventually(lambda: nothing_held(app, engine))


async def test_dropping_the_last_reference_cancels(app: App, client: AsyncClient, engine: FakeEngine) -> None:
    stream = await decoding(client, engine)
    del stream
    gc.collect()
    await eventually(lambda: nothing_held(app, engine))


async def test_breaking_out_of_the_loop_cancels(app: App, client: AsyncClient, engine: FakeEngine) -> None:
    engine.decoding.clear()
    engine.ungated_tokens = 1

    async def first() -> str:
        async for delta in client.generate("abc"):
            return delta.text
        return ""

    assert await first() == "a"
    await eventually(lambda: nothing_held(app, engine))


async def test_cancelling_the_task_cancels_a_stream_and_a_unary_call(
    app: App, client: AsyncClient, engine: FakeEngine
) -> None:
    engine.decoding.clear()

    async def consume() -> None:
        async for _ in client.generate("abc"):
            pass

    async def complete() -> None:
        await client.complete("abc")

    for call in (consume, complete):
        task = asyncio.create_task(call())
        await eventually(lambda: len(engine.streams) == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await eventually(lambda: nothing_held(app, engine))


async def test_a_sync_generator_that_is_dropped_cancels(app: App, engine: FakeEngine) -> None:
    engine.decoding.clear()
    engine.ungated_tokens = 1

    def take_one() -> str:
        with Client(f"127.0.0.1:{app.port}") as client:
            for delta in client.generate("abc"):
                return delta.text
        return ""

    def drop() -> None:
        stream = client.generate("abc")
        next(stream)
        del stream

    assert await asyncio.to_thread(take_one) == "a"
    await eventually(lambda: nothing_held(app, engine))
    client = Client(f"127.0.0.1:{app.port}")
    await asyncio.to_thread(drop)
    await eventually(lambda: nothing_held(app, engine))
    client.close()


async def test_the_deadline_of_the_call_is_the_deadline_of_the_request(client: AsyncClient, engine: FakeEngine) -> None:
    now = asyncio.get_running_loop().time()
    await client.complete("x", timeout_s=30)
    await client.complete("x")
    with_deadline, without = engine.submitted
    assert with_deadline.deadline == pytest.approx(now + 30, abs=5)
    assert with_deadline.deadline > with_deadline.arrival  # type: ignore[operator]
    assert without.deadline is None


async def test_a_passed_deadline_cancels_in_every_state(
    app: App, client: AsyncClient, engine: FakeEngine, tokenizer: ByteTokenizer
) -> None:
    for hold in (engine.admitting.clear, engine.decoding.clear, tokenizer.gate.clear):
        hold()
        with pytest.raises(DeadlineError):
            await client.complete("abc", timeout_s=0.1)
        await eventually(lambda: nothing_held(app, engine))
        engine.admitting.set()
        engine.decoding.set()
        tokenizer.gate.set()


async def test_a_lost_connection_cancels(app: App, engine: FakeEngine) -> None:
    engine.decoding.clear()
    async with AsyncClient(f"127.0.0.1:{app.port}") as client:
        stream = client.generate("abc")
        reading = asyncio.create_task(anext(stream))  # type: ignore[arg-type]
        await eventually(lambda: len(engine.streams) == 1)
    await eventually(lambda: nothing_held(app, engine))
    with pytest.raises((RequestCancelledError, asyncio.CancelledError, StopAsyncIteration)):
        await reading


async def test_a_client_that_goes_while_its_prompt_is_tokenised_never_reaches_the_engine(
    app: App, client: AsyncClient, engine: FakeEngine, tokenizer: ByteTokenizer
) -> None:
    tokenizer.gate.clear()
    call = asyncio.create_task(client.complete("abc"))
    await eventually(lambda: engine.gate.requests == 1)
    call.cancel()
    await eventually(lambda: nothing_held(app, engine))
    tokenizer.gate.set()
    assert (await client.complete("ok", max_tokens=2)).text == "ok"
    assert [bytes(request.prompt_token_ids) for request in engine.submitted] == [b"ok"]


async def test_cancel_by_id_ends_the_call_with_cancelled(app: App, client: AsyncClient, engine: FakeEngine) -> None:
    stream = await decoding(client, engine, request_id="r")
    assert await client.cancel("r")
    with pytest.raises(RequestCancelledError) as caught:
        await anext(stream)
    assert caught.value.reason == "CANCELLED"
    assert caught.value.request_id == "r"
    await eventually(lambda: nothing_held(app, engine))


async def test_cancel_by_id_reaches_a_queued_request(app: App, channel: grpc.aio.Channel, engine: FakeEngine) -> None:
    engine.admitting.clear()
    stub = inference_pb2_grpc.InferenceServiceStub(channel)
    call = stub.Complete(pb.CompleteRequest(request_id="r", prompt=pb.Prompt(text="x")))
    await eventually(lambda: len(engine.streams) == 1)
    assert (await stub.Cancel(pb.CancelRequest(request_id="r"))).found
    refused = await refusal(call)
    assert refused.code is grpc.StatusCode.CANCELLED
    assert refused.trailers["grpc-retry-pushback-ms"] == "-1"
    assert nothing_held(app, engine)


async def test_cancelling_an_unknown_or_finished_id_is_no_error(client: AsyncClient) -> None:
    assert not await client.cancel("never-was")
    await client.complete("x", request_id="r")
    assert not await client.cancel("r")


async def test_a_tenant_cannot_cancel_what_another_runs(app: App, client: AsyncClient, engine: FakeEngine) -> None:
    stream = await decoding(client, engine, request_id="r")
    async with AsyncClient(f"127.0.0.1:{app.port}", tenant="other") as other:
        assert not await other.cancel("r")
    engine.decoding.set()
    assert "".join([delta.text async for delta in stream]) == "bcdef"


async def test_the_ticket_is_taken_before_tokenising_with_an_upper_bound_of_what_is_asked(
    client: AsyncClient, engine: FakeEngine, tokenizer: ByteTokenizer
) -> None:
    tokenizer.gate.clear()
    call = asyncio.create_task(client.complete("ééé", max_tokens=10, n=2))
    await eventually(lambda: engine.gate.requests == 1)
    # 6 bytes and 2 tokens the tokenizer may add; two choices of 10.
    assert engine.gate.tokens == 6 + 2 + 2 * 10
    tokenizer.gate.set()
    await call
    assert engine.gate.requests == 0


async def test_counters_return_to_zero_after_a_storm_of_rejects_cancels_and_deadlines(
    app: App, client: AsyncClient, engine: FakeEngine
) -> None:
    engine.decoding.clear()

    async def one(index: int) -> None:
        match index % 4:
            case 0:
                await client.complete("x", timeout_s=0.05)
            case 1:
                await client.complete("", timeout_s=5)
            case 2:
                await client.complete("x", model="nope")
            case 3:
                async with client.generate("x", request_id=f"r{index}") as stream:
                    async with asyncio.timeout(0.05):
                        await anext(stream)

    results = await asyncio.gather(*(one(index) for index in range(200)), return_exceptions=True)
    assert all(isinstance(result, Exception) for result in results)
    await eventually(lambda: nothing_held(app, engine))
    engine.decoding.set()
    assert (await client.complete("ok", max_tokens=2)).text == "ok"
