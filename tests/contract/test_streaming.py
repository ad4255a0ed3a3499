"""What Generate and Complete send for a request that succeeds."""

from __future__ import annotations

import grpc
import pytest
from weir.client import AsyncClient, Choice, Delta, TokenLogprob
from weir.v1 import inference_pb2 as pb
from weir.v1 import inference_pb2_grpc

from tests.contract.decode import drained
from tests.contract.fake_engine import FakeEngine

pytestmark = pytest.mark.usefixtures("app")


async def test_the_first_message_carries_prompt_and_cached_tokens_and_the_last_finish_usage_and_timings(
    channel: grpc.aio.Channel,
) -> None:
    stub = inference_pb2_grpc.InferenceServiceStub(channel)
    request = pb.GenerateRequest(request_id="r1", prompt=pb.Prompt(text="abc"), params=pb.SamplingParams(max_tokens=2))
    messages = await drained(stub.Generate(request))
    assert messages == [
        pb.GenerateResponse(
            started=pb.Started(request_id="r1", prompt_tokens=3, cached_tokens=2, max_tokens=2, queue_s=0.25)
        ),
        pb.GenerateResponse(deltas=[pb.Delta(choice=0, token_ids=[97], text="a")]),
        pb.GenerateResponse(
            deltas=[pb.Delta(choice=0, token_ids=[98], text="b", finish=pb.Finish(reason=pb.FINISH_REASON_LENGTH))],
            done=pb.Done(
                usage=pb.Usage(prompt_tokens=3, completion_tokens=2, cached_tokens=2),
                timings=pb.Timings(queue_s=0.25, prefill_s=0.5, first_token_s=0.75, total_s=1.5),
            ),
        ),
    ]


async def test_the_last_text_rides_with_or_before_its_finish_so_that_no_tail_is_lost(client: AsyncClient) -> None:
    deltas = [delta async for delta in client.generate("tail", max_tokens=4)]
    assert [delta.text for delta in deltas] == ["t", "a", "i", "l"]
    assert [delta.finish_reason for delta in deltas] == [None, None, None, "length"]


async def test_streamed_text_is_the_unary_text(client: AsyncClient) -> None:
    stream = client.generate("the same words", max_tokens=9)
    streamed = [delta async for delta in stream]
    whole = await client.complete("the same words", max_tokens=9)
    assert "".join(delta.text for delta in streamed) == whole.text == "the same "
    assert tuple(token for delta in streamed for token in delta.token_ids) == whole.token_ids
    assert (stream.usage, stream.timings, stream.max_tokens) == (whole.usage, whole.timings, whole.max_tokens)


async def test_every_choice_has_its_own_deltas_and_its_own_finish(client: AsyncClient) -> None:
    deltas = [delta async for delta in client.generate("hi", n=3, max_tokens=8)]
    assert [(d.choice, d.text, d.finish_reason) for d in deltas] == [
        (0, "h", None),
        (1, "h", None),
        (2, "h", None),
        (0, "i", "stop"),
        (1, "i", "stop"),
        (2, "i", "stop"),
    ]
    whole = await client.complete("hi", n=3, max_tokens=8)
    assert whole.choices == (Choice("hi", (104, 105), (), "stop", None),) * 3
    assert whole.usage.completion_tokens == 6
    assert whole.usage.total_tokens == 8


async def test_logprobs_of_output_and_prompt_reach_the_client(client: AsyncClient) -> None:
    stream = client.generate("ab", max_tokens=1, logprobs=2, prompt_logprobs=0)
    deltas = [delta async for delta in stream]
    expected = TokenLogprob(97, -0.5, ((97, -0.5), (1, -2.0)))
    assert deltas == [Delta(0, "a", (97,), (expected,), "length", None)]
    assert stream.prompt_logprobs == (TokenLogprob(0, None, ()), TokenLogprob(98, -1.0, ()))
    whole = await client.complete("ab", max_tokens=1, logprobs=2, prompt_logprobs=0)
    assert whole.logprobs == (expected,)
    assert whole.prompt_logprobs == stream.prompt_logprobs


async def test_chat_goes_through_the_template_and_token_ids_go_as_they_are(
    client: AsyncClient, engine: FakeEngine
) -> None:
    await client.complete(messages=[{"role": "user", "content": "hi"}], max_tokens=1)
    await client.complete(token_ids=[9, 8, 7], max_tokens=1)
    chat, ids = engine.submitted
    assert bytes(chat.prompt_token_ids) == b"<user>hi<assistant>"
    assert ids.prompt_token_ids == (9, 8, 7)


async def test_tokenize_returns_ids_and_on_request_their_bytes(channel: grpc.aio.Channel) -> None:
    stub = inference_pb2_grpc.InferenceServiceStub(channel)
    answer = await stub.Tokenize(pb.TokenizeRequest(prompt=pb.Prompt(text="é"), with_bytes=True))
    assert list(answer.token_ids) == [0xC3, 0xA9]
    assert list(answer.token_bytes) == [b"\xc3", b"\xa9"]


async def test_get_model_tells_name_and_limits(client: AsyncClient, engine: FakeEngine) -> None:
    model = await client.model()
    assert (model.name, model.max_model_len, model.kv_total_tokens, model.eos_token_ids) == ("echo", 64, 400, (0,))
