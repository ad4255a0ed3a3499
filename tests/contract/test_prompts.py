"""Prompts without a server: what a model folder without a tokenizer can and cannot take."""

from __future__ import annotations

import pytest
from weir.engine.errors import InvalidRequestError
from weir.server.limits import MessageLimits
from weir.server.prompts import NoTokenizer, PromptEncoder
from weir.v1 import inference_pb2 as pb

from tests.contract.conftest import SETTINGS


@pytest.fixture
def encoder() -> PromptEncoder:
    return PromptEncoder(NoTokenizer(), (), MessageLimits.of(SETTINGS, max_model_len=64))


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
