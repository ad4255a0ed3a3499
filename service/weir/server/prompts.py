"""Prompts to token ids: what can be refused at a glance is, and the rest is tokenised outside of this process."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from weir.engine.errors import InvalidRequestError, UnavailableError, Violation
from weir.models.errors import PromptError
from weir.server.limits import MessageLimits
from weir.v1 import inference_pb2 as pb

# Tokenize calls that may wait at once: nothing else bounds them, and requests wait in the same line.
MAX_TOKENIZE_CALLS = 64
_BUSY_RETRY_S = 1.0
_IDS_AT_ONCE = 8192
# Beginning-of-sequence and a word-start marker.
_TEXT_EXTRA_TOKENS = 2
# What chat templates put around one turn, and around the whole conversation (a default system prompt).
_TURN_EXTRA_TOKENS = 16
_CHAT_EXTRA_TOKENS = 64


class Tokenizer(Protocol):
    """What the server asks of a tokenizer; `weir.server.tokenizer_pool.TokenizerPool` is one."""

    async def load(self) -> Sequence[bytes]:
        """Wait until it can be used; token id -> the bytes it stands for. Raises ModelError."""

    async def encode(self, prompt: pb.Prompt) -> Sequence[int]:
        """Token ids of a text, or of a chat in the model's template. Raises PromptError or UnavailableError."""

    def close(self) -> None:
        """End it, also in the middle of a prompt."""


class NoTokenizer:
    """For a model folder without one, as random weights of a bare config have: prompts are token ids."""

    def start(self) -> None:
        """Nothing to start."""

    async def load(self) -> Sequence[bytes]:
        """Nothing is known of any token."""
        return ()

    async def encode(self, prompt: pb.Prompt) -> Sequence[int]:
        """Refuse."""
        raise PromptError("this model has no tokenizer; send token_ids")

    def close(self) -> None:
        """Nothing to end."""


class PromptEncoder:
    """Prompts of a loaded model, as its requests take them."""

    def __init__(self, tokenizer: Tokenizer, token_bytes: Sequence[bytes], limits: MessageLimits) -> None:
        self._tokenizer = tokenizer
        self._token_bytes = token_bytes
        self._max_tokens = limits.prompt_entries
        self._max_response_bytes = limits.response_bytes
        self._tokenize_calls = 0

    def check(self, prompt: pb.Prompt) -> None:
        """Raise InvalidRequestError for a prompt that is none, or that has too many token ids."""
        match prompt.WhichOneof("input"):
            case None:
                raise _invalid("prompt", "set one of text, token_ids or chat")
            case "token_ids":
                self._check_length(len(prompt.token_ids.ids))

    async def encode(self, prompt: pb.Prompt) -> tuple[int, ...]:
        """The token ids of a checked prompt. Raises InvalidRequestError, or UnavailableError."""
        ids = await self._ids(prompt)
        self._check_length(len(ids))
        return tuple(ids)

    async def tokenize(self, prompt: pb.Prompt, with_bytes: bool) -> pb.TokenizeResponse:
        """The answer to a Tokenize call; there may be more ids than a request can have.

        Raises InvalidRequestError, or UnavailableError when many such calls wait already.
        """
        if self._tokenize_calls >= MAX_TOKENIZE_CALLS:
            raise UnavailableError("TOKENIZER_BUSY", _BUSY_RETRY_S)
        self._tokenize_calls += 1
        try:
            return await self._response(await self._ids(prompt), with_bytes)
        finally:
            self._tokenize_calls -= 1

    async def _response(self, ids: Sequence[int], with_bytes: bool) -> pb.TokenizeResponse:
        response, table = pb.TokenizeResponse(), self._token_bytes
        for start in range(0, len(ids), _IDS_AT_ONCE):
            part = ids[start : start + _IDS_AT_ONCE]
            response.token_ids.extend(part)
            if with_bytes:
                response.token_bytes.extend(table[i] if 0 <= i < len(table) else b"" for i in part)
            await asyncio.sleep(0)  # others have their turn
        if (size := response.ByteSize()) > self._max_response_bytes:
            reason = (
                f"{len(ids)} tokens make an answer of {size} bytes; messages have at most {self._max_response_bytes}"
            )
            raise _invalid("prompt", reason)
        return response

    async def _ids(self, prompt: pb.Prompt) -> Sequence[int]:
        kind = prompt.WhichOneof("input")
        if kind == "token_ids":
            ids: Sequence[int] = prompt.token_ids.ids
            return ids
        try:
            return await self._tokenizer.encode(prompt)
        except PromptError as error:
            raise _invalid(f"prompt.{kind}", str(error)) from None

    def _check_length(self, tokens: int) -> None:
        if tokens > self._max_tokens:
            raise _invalid("prompt", f"has {tokens} tokens; the model takes {self._max_tokens}")


def _invalid(field: str, description: str) -> InvalidRequestError:
    return InvalidRequestError((Violation(field, description),))


def tokens_upper_bound(prompt: pb.Prompt) -> int:
    """An upper bound on the tokens of a prompt, without tokenising: no token is shorter than a byte."""
    match prompt.WhichOneof("input"):
        case "token_ids":
            return len(prompt.token_ids.ids)
        case "text":
            return len(prompt.text.encode()) + _TEXT_EXTRA_TOKENS
        case "chat":
            # All of its bytes, and so at least those of roles and contents.
            turns = len(prompt.chat.messages)
            return int(prompt.chat.ByteSize()) + _TURN_EXTRA_TOKENS * turns + _CHAT_EXTRA_TOKENS
        case _:
            return 0
