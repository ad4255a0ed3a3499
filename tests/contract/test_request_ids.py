"""Request ids: given, made, echoed, unique among the living."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from weir.client import AsyncClient, InvalidRequestError
from weir.v1 import inference_pb2 as pb
from weir.v1 import inference_pb2_grpc

from tests.contract.decode import eventually
from tests.contract.fake_engine import FakeEngine

pytestmark = pytest.mark.usefixtures("app")


async def test_the_id_in_the_request_wins_over_the_header_and_comes_back_in_the_trailers(
    channel: grpc.aio.Channel,
) -> None:
    stub = inference_pb2_grpc.InferenceServiceStub(channel)
    call = stub.Complete(
        pb.CompleteRequest(request_id="mine", prompt=pb.Prompt(text="x")), metadata=(("x-request-id", "gateway"),)
    )
    assert (await call).request_id == "mine"
    assert dict(await call.trailing_metadata())["x-request-id"] == "mine"


async def test_the_header_names_a_request_that_names_none(channel: grpc.aio.Channel) -> None:
    stub = inference_pb2_grpc.InferenceServiceStub(channel)
    call = stub.Complete(pb.CompleteRequest(prompt=pb.Prompt(text="x")), metadata=(("x-request-id", "gateway"),))
    assert (await call).request_id == "gateway"
    assert dict(await call.trailing_metadata())["x-request-id"] == "gateway"


async def test_a_refused_call_still_echoes_its_header(client: AsyncClient) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        await client.complete("x", model="nope", metadata=(("x-request-id", "gateway"),))
    assert caught.value.request_id == "gateway"


async def test_every_nameless_request_gets_an_id_of_its_own(client: AsyncClient) -> None:
    first, second = await client.complete("x"), await client.complete("x")
    assert first.request_id
    assert first.request_id != second.request_id


async def test_two_live_requests_may_not_share_an_id(client: AsyncClient, engine: FakeEngine) -> None:
    engine.decoding.clear()
    first = asyncio.create_task(client.complete("same", request_id="r"))
    await eventually(lambda: len(engine.streams) == 1)
    with pytest.raises(InvalidRequestError) as caught:
        await client.complete("same", request_id="r")
    assert [v.field for v in caught.value.violations] == ["request_id"]
    engine.decoding.set()
    assert (await first).text == "same"
    assert (await client.complete("same", request_id="r")).text == "same"


async def test_two_at_once_with_one_id_before_either_is_tokenised(
    client: AsyncClient, engine: FakeEngine, tokenizer: object
) -> None:
    tokenizer.gate.clear()  # type: ignore[attr-defined]
    calls = [asyncio.create_task(client.complete("ab", request_id="r", max_tokens=2)) for _ in range(2)]
    done, _ = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
    assert isinstance(done.pop().exception(), InvalidRequestError)
    tokenizer.gate.set()  # type: ignore[attr-defined]
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert sorted(type(result).__name__ for result in results) == ["Completion", "InvalidRequestError"]


async def test_a_gateway_that_repeats_its_header_gets_both_requests_served_under_different_ids(
    client: AsyncClient, engine: FakeEngine
) -> None:
    engine.decoding.clear()
    header = (("x-request-id", "hedged"),)
    calls = [asyncio.create_task(client.complete("ab", max_tokens=2, metadata=header)) for _ in range(2)]
    await eventually(lambda: len(engine.streams) == 2)
    engine.decoding.set()
    ids = sorted([(await call).request_id for call in calls])
    assert ids[0] == "hedged"
    assert ids[1].startswith("hedged-")
