"""Prompts to token ids, in threads of their own: a long prompt must not hold up the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from weir.engine.errors import InvalidRequestError, Violation
from weir.models.errors import PromptError
from weir.v1 import inference_pb2 as pb

# Special tokens stand for text too, and the table of bytes leaves them out.
_LONGEST_SPECIAL_BYTES = 64
# Beginning-of-sequence and a word-start marker.
_TEXT_EXTRA_TOKENS = 2
# What chat templates put around one turn, and around the whole conversation (a default system prompt).
_TURN_EXTRA_TOKENS = 16
_CHAT_EXTRA_TOKENS = 64


class Tokenizer(Protocol):
    """What the server asks of a tokenizer; `weir.models.tokenizer.Tokenizer` is one."""

    @property
    def token_bytes(self) -> Sequence[bytes]:
        """Token id -> the bytes it stands for."""

    def encode(self, text: str) -> list[int]:
        """Token ids of plain text. Raises PromptError."""

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Token ids of a conversation in the model's template. Raises PromptError when that refuses it."""


class NoTokenizer:
    """For a model folder without one, as random weights of a bare config have: prompts are token ids."""

    token_bytes: Sequence[bytes] = ()

    def encode(self, text: str) -> list[int]:
        """Refuse."""
        raise PromptError("this model has no tokenizer; send token_ids")

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Refuse."""
        return self.encode("")


class PromptEncoder:
    """Owns the tokenizer and its threads.

    A prompt of megabytes takes seconds to tokenise, only to be refused for its length; one that no tokenisation could
    make short enough is refused at once, so that it cannot keep the threads from others.
    """

    def __init__(self, tokenizer: Tokenizer, threads: int, max_model_len: int) -> None:
        self._tokenizer = tokenizer
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="tokenize")
        self._max_model_len = max_model_len
        self._longest_token_bytes = max(_LONGEST_SPECIAL_BYTES, max(map(len, tokenizer.token_bytes), default=0))

    async def encode(self, prompt: pb.Prompt) -> tuple[int, ...]:
        """The token ids of any kind of prompt. Raises InvalidRequestError."""
        loop = asyncio.get_running_loop()
        match prompt.WhichOneof("input"):
            case "token_ids":
                return tuple(prompt.token_ids.ids)
            case "text":
                self._check_length("prompt.text", len(prompt.text.encode()))
                return await loop.run_in_executor(self._threads, self._encode_text, prompt.text)
            case "chat":
                self._check_length("prompt.chat", sum(len(turn.content.encode()) for turn in prompt.chat.messages))
                return await loop.run_in_executor(self._threads, self._encode_chat, prompt.chat)
            case _:
                raise InvalidRequestError((Violation("prompt", "set one of text, token_ids or chat"),))

    def token_bytes(self, token_ids: Sequence[int]) -> list[bytes]:
        """The bytes of each token; nothing for ids the vocabulary lacks."""
        table = self._tokenizer.token_bytes
        return [table[i] if 0 <= i < len(table) else b"" for i in token_ids]

    def close(self) -> None:
        """Let the threads end when what they do is done."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _check_length(self, field: str, num_bytes: int) -> None:
        fewest = num_bytes // self._longest_token_bytes
        if fewest > self._max_model_len:
            reason = f"{num_bytes} bytes are at least {fewest} tokens; the model takes {self._max_model_len}"
            raise InvalidRequestError((Violation(field, reason),))

    def _encode_text(self, text: str) -> tuple[int, ...]:
        try:
            return tuple(self._tokenizer.encode(text))
        except PromptError as error:
            raise InvalidRequestError((Violation("prompt.text", str(error)),)) from None

    def _encode_chat(self, chat: pb.Chat) -> tuple[int, ...]:
        try:
            return tuple(self._tokenizer.encode_chat([{"role": m.role, "content": m.content} for m in chat.messages]))
        except PromptError as error:
            raise InvalidRequestError((Violation("prompt.chat", str(error)),)) from None


def tokens_upper_bound(prompt: pb.Prompt) -> int:
    """An upper bound on the tokens of a prompt, without tokenising: no token is shorter than a byte."""
    match prompt.WhichOneof("input"):
        case "token_ids":
            return len(prompt.token_ids.ids)
        case "text":
            return len(prompt.text.encode()) + _TEXT_EXTRA_TOKENS
        case "chat":
            turns = prompt.chat.messages
            written = sum(len(turn.role.encode()) + len(turn.content.encode()) + _TURN_EXTRA_TOKENS for turn in turns)
            return written + _CHAT_EXTRA_TOKENS
        case _:
            return 0
