"""Bad input: each with its typed error, and the server unharmed."""

from __future__ import annotations

import grpc
import pytest
from weir.client import AsyncClient, InvalidRequestError, MessageTooLargeError
from weir.server.app import App

from tests.contract.decode import refusal
from tests.contract.fake_engine import FakeEngine

pytestmark = pytest.mark.usefixtures("app")


async def violated_fields(client: AsyncClient, *prompt: str, **options: object) -> list[str]:
    with pytest.raises(InvalidRequestError) as caught:
        await client.complete(*prompt, **options)  # type: ignore[arg-type]
    assert caught.value.retry_after_s is None
    return [violation.field for violation in caught.value.violations]


@pytest.fixture(autouse=True)
async def server_goes_on(client: AsyncClient, engine: FakeEngine):  # type: ignore[no-untyped-def]
    """After each refusal, the next request is served and nothing is held."""
    yield
    assert (await client.complete("ok", max_tokens=2)).text == "ok"
    assert (engine.gate.requests, engine.gate.tokens, engine.streams) == (0, 0, set())


async def test_empty_prompt(client: AsyncClient) -> None:
    assert await violated_fields(client, "") == ["prompt"]


async def test_no_prompt_at_all(channel: grpc.aio.Channel) -> None:
    refused = await refusal(channel.unary_unary("/weir.v1.InferenceService/Complete")(b""))
    assert refused.code is grpc.StatusCode.INVALID_ARGUMENT
    assert [v.field for v in refused.details["BadRequest"].field_violations] == ["prompt"]


async def test_unknown_model_name(client: AsyncClient) -> None:
    assert await violated_fields(client, "x", model="gpt-9") == ["model"]


async def test_wrong_sampling_fields_are_named_as_the_api_names_them(client: AsyncClient) -> None:
    assert await violated_fields(client, "x", top_p=1.5) == ["params.top_p"]
    assert await violated_fields(client, "x", top_p=0.0) == ["params.top_p"]


async def test_conversation_that_the_template_refuses(client: AsyncClient) -> None:
    assert await violated_fields(client, messages=[{"role": "assistant", "content": "hi"}]) == ["prompt.chat"]


async def test_request_id_that_cannot_be_echoed(client: AsyncClient) -> None:
    for bad in ("é", "a\nb", "x" * 129):
        assert await violated_fields(client, "x", request_id=bad) == ["request_id"]


async def test_tenant_id_that_is_too_long(app: App) -> None:
    async with AsyncClient(f"127.0.0.1:{app.port}", tenant="t" * 129, max_attempts=1) as client:
        assert await violated_fields(client, "x") == ["x-tenant-id"]


@pytest.mark.parametrize("method", ["Complete", "Generate"])
async def test_text_that_is_not_utf8(channel: grpc.aio.Channel, method: str) -> None:
    # prompt { text: <ff fe> }, written by hand: no protobuf library would send it.
    bad = b"\x1a\x04\x0a\x02\xff\xfe"
    make = channel.unary_unary if method == "Complete" else channel.unary_stream
    call = make(f"/weir.v1.InferenceService/{method}")(bad)
    refused = await refusal(call if method == "Complete" else call.read())
    assert refused.code is grpc.StatusCode.INVALID_ARGUMENT
    [violation] = refused.details["BadRequest"].field_violations
    assert violation.field == "request"
    assert "UTF-8" in violation.description
    assert refused.trailers["grpc-retry-pushback-ms"] == "-1"


async def test_bytes_that_are_no_message(channel: grpc.aio.Channel) -> None:
    refused = await refusal(channel.unary_unary("/weir.v1.InferenceService/Complete")(b"\xff\xff\xff"))
    assert refused.code is grpc.StatusCode.INVALID_ARGUMENT


async def test_five_megabyte_prompt_is_told_apart_from_an_exhausted_budget(app: App) -> None:
    prompt = "x" * 5_000_000
    async with AsyncClient(f"127.0.0.1:{app.port}", max_message_bytes=8 * 2**20, max_attempts=5) as client:
        with pytest.raises(MessageTooLargeError) as refused_by_server:
            await client.complete(prompt)
    assert refused_by_server.value.code == "RESOURCE_EXHAUSTED"
    assert refused_by_server.value.reason is None
    assert "larger than max (5000" in refused_by_server.value.message


async def test_the_client_refuses_what_it_may_not_send(client: AsyncClient) -> None:
    with pytest.raises(MessageTooLargeError):
        await client.complete("x" * 5_000_000)
