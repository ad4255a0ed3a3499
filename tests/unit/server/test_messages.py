"""Requests from bytes: the outline agrees with the message, and a large one gives others their turn."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from weir.config import Settings
from weir.engine.errors import InvalidRequestError, UnavailableError
from weir.server.limits import MessageLimits
from weir.server.messages import MessageParser
from weir.server.outline import OutlineReader
from weir.v1 import inference_pb2 as pb

COMPLETE = "/weir.v1.InferenceService/Complete"
LIMITS = MessageLimits.of(Settings(), max_model_len=8192)
TEXT = st.text(max_size=50)
PROMPTS = st.one_of(
    st.builds(pb.Prompt),
    st.builds(pb.Prompt, text=TEXT),
    st.builds(pb.Prompt, token_ids=st.builds(pb.TokenIds, ids=st.lists(st.integers(-(2**31), 2**31 - 1)))),
    st.builds(
        pb.Prompt,
        chat=st.builds(pb.Chat, messages=st.lists(st.builds(pb.ChatMessage, role=TEXT, content=TEXT), max_size=20)),
    ),
)
PARAMS = st.builds(pb.SamplingParams, stop=st.lists(TEXT), max_tokens=st.integers(0, 2**31 - 1))
REQUESTS = st.one_of(
    st.builds(pb.GenerateRequest, prompt=PROMPTS, params=PARAMS, request_id=TEXT, n=st.integers(0, 9)),
    st.builds(pb.CompleteRequest, prompt=PROMPTS, params=PARAMS, cache_salt=TEXT),
    st.builds(pb.TokenizeRequest, prompt=PROMPTS, model=TEXT, with_bytes=st.booleans()),
    st.builds(pb.CompleteRequest),
)


@given(request=REQUESTS)
def test_the_outline_of_a_request_has_the_sizes_of_its_parts(request: Any) -> None:
    data = request.SerializeToString()
    outline = OutlineReader(type(request)).read(data)
    assert outline.text_bytes == len(request.prompt.text.encode())
    assert outline.token_ids_bytes == request.prompt.token_ids.ByteSize()
    assert outline.chat_bytes == request.prompt.chat.ByteSize()
    assert outline.turns == len(request.prompt.chat.messages)
    assert outline.params_bytes == (0 if isinstance(request, pb.TokenizeRequest) else request.params.ByteSize())
    parts = outline.text_bytes + outline.token_ids_bytes + outline.chat_bytes + outline.params_bytes
    assert outline.rest_bytes == len(data) - parts


@given(request=REQUESTS)
def test_an_outline_is_read_of_exactly_what_is_a_message(request: Any) -> None:
    """Cut anywhere, the bytes are refused by the outline or by the message itself: the outline lets nothing through."""
    data, reader = request.SerializeToString(), OutlineReader(type(request))
    for end in range(len(data)):
        try:
            reader.read(data[:end])
        except DecodeError:
            with pytest.raises(DecodeError):
                type(request).FromString(data[:end])


def untouched(data: bytes) -> Any:
    raise AssertionError("parsed")


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (pb.CompleteRequest(prompt=pb.Prompt(text="x" * (16 * 8192 + 1))), "prompt.text"),
        (pb.CompleteRequest(prompt=pb.Prompt(chat=pb.Chat(messages=[pb.ChatMessage()] * 8193))), "prompt.chat"),
        (pb.CompleteRequest(params=pb.SamplingParams(stop=["s" * 100] * 1000)), "params"),
        (pb.CompleteRequest(cache_salt="s" * 9000), "request"),
        (pb.CompleteRequest(prompt=pb.Prompt(text="x" * 3_000_000)), "request"),
    ],
)
async def test_what_is_beyond_a_limit_is_not_parsed(message: pb.CompleteRequest, field: str) -> None:
    parser = MessageParser(lambda: LIMITS)
    with pytest.raises(InvalidRequestError) as refused:
        await parser.parse(COMPLETE, untouched, message.SerializeToString())
    assert [violation.field for violation in refused.value.violations] == [field]


async def test_every_part_that_is_too_large_is_named() -> None:
    message = pb.CompleteRequest(
        prompt=pb.Prompt(chat=pb.Chat(messages=[pb.ChatMessage(role="user")] * 16_400)),
        params=pb.SamplingParams(stop=["s" * 100] * 470),
    )
    with pytest.raises(InvalidRequestError) as refused:
        await MessageParser(lambda: LIMITS).parse(COMPLETE, untouched, message.SerializeToString())
    assert [violation.field for violation in refused.value.violations] == ["prompt.chat", "params", "prompt.chat"]


async def test_others_have_their_turn_between_two_large_messages() -> None:
    parser, seen = MessageParser(lambda: LIMITS), []
    large = pb.CompleteRequest(prompt=pb.Prompt(text="x" * 100_000)).SerializeToString()

    def deserialize(data: bytes) -> pb.CompleteRequest:
        seen.append("large")
        return pb.CompleteRequest.FromString(data)

    async def somebody_else() -> None:
        while seen.count("large") < 5:
            seen.append("other")
            await asyncio.sleep(0)

    other = asyncio.create_task(somebody_else())
    requests = await asyncio.gather(*(parser.parse(COMPLETE, deserialize, large) for _ in range(5)))
    await other
    assert [len(request.prompt.text) for request in requests] == [100_000] * 5
    assert all(pair != ("large", "large") for pair in itertools.pairwise(seen))


async def test_bytes_that_are_no_message_are_refused_whatever_their_size() -> None:
    for data in (b"\xff", b"\x1a\x04\x0a\x02\xff\xfe", b"\xff" * 100_000, b"\x1a\xff\xff\x03" + b"\x0a" * 60_000):
        with pytest.raises(InvalidRequestError) as refused:
            await MessageParser(lambda: LIMITS).parse(COMPLETE, pb.CompleteRequest.FromString, data)
        assert [violation.field for violation in refused.value.violations] == ["request"]


async def test_while_the_model_loads_small_requests_are_parsed_and_large_ones_told_to_wait() -> None:
    parser = MessageParser(lambda: None)
    small = pb.CompleteRequest(prompt=pb.Prompt(text="x" * 1000))
    assert await parser.parse(COMPLETE, pb.CompleteRequest.FromString, small.SerializeToString()) == small
    large = pb.CompleteRequest(prompt=pb.Prompt(text="x" * 100_000))
    with pytest.raises(UnavailableError, match="model loading"):
        await parser.parse(COMPLETE, untouched, large.SerializeToString())
