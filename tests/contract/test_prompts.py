"""Prompts without a server: what a model without a tokenizer takes, and how large an answer about tokens may be."""

from __future__ import annotations

from dataclasses import replace

import pytest
from weir.engine.errors import InvalidRequestError
from weir.server.limits import MessageLimits
from weir.server.prompts import NoTokenizer, PromptEncoder
from weir.v1 import inference_pb2 as pb

from tests.contract.conftest import SETTINGS
from tests.contract.fake_tokenizer import ByteTokenizer

LIMITS = MessageLimits.of(SETTINGS, max_model_len=64)


@pytest.fixture
def encoder() -> PromptEncoder:
    return PromptEncoder(NoTokenizer(), (), LIMITS)


async def test_a_model_without_a_tokenizer_takes_token_ids(encoder: PromptEncoder) -> None:
    assert await encoder.encode(pb.Prompt(token_ids=pb.TokenIds(ids=[3, 1, 2]))) == (3, 1, 2)


@pytest.mark.parametrize(
    ("prompt", "field"),
    [
        (pb.Prompt(text="x"), "prompt.text"),
        (pb.Prompt(chat=pb.Chat(messages=[pb.ChatMessage(role="user", content="x")])), "prompt.chat"),
    ],
)
async def test_a_model_without_a_tokenizer_refuses_text(encoder: PromptEncoder, prompt: pb.Prompt, field: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        await encoder.encode(prompt)
    assert [(v.field, v.description) for v in caught.value.violations] == [
        (field, "this model has no tokenizer; send token_ids")
    ]


@pytest.mark.parametrize("with_bytes", [False, True])
@pytest.mark.parametrize("tokens", [0, 1, 8192, 8193, 20_000])
async def test_an_answer_about_any_number_of_tokens_is_whole(tokens: int, with_bytes: bool) -> None:
    tokenizer = ByteTokenizer()
    encoder = PromptEncoder(tokenizer, await tokenizer.load(), LIMITS)
    text = ("0123456789" * 2000)[:tokens]
    answer = await encoder.tokenize(pb.Prompt(text=text), with_bytes)
    assert bytes(answer.token_ids).decode() == text
    assert b"".join(answer.token_bytes).decode() == (text if with_bytes else "")


async def test_an_answer_about_tokens_that_no_message_holds_is_refused_with_both_sizes() -> None:
    tokenizer = ByteTokenizer()
    # 10 ids of a byte each: tag, length, and the ids.
    for response_bytes, fits in ((12, True), (11, False)):
        encoder = PromptEncoder(tokenizer, (), replace(LIMITS, response_bytes=response_bytes))
        if fits:
            assert len((await encoder.tokenize(pb.Prompt(text="0123456789"), False)).token_ids) == 10
        else:
            with pytest.raises(InvalidRequestError, match=r"10 tokens make an answer of 12 bytes; .* at most 11"):
                await encoder.tokenize(pb.Prompt(text="0123456789"), False)
