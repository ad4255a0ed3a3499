"""A tokenizer whose tokens are bytes, so that every expected id can be worked out by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from weir.models.errors import PromptError
from weir.v1 import inference_pb2 as pb


class ByteTokenizer:
    """`gate` holds every encode call until it is set; `prompts` are those that came."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.prompts: list[pb.Prompt] = []
        self.closed = False

    async def load(self) -> Sequence[bytes]:
        return [bytes([value]) for value in range(256)]

    async def encode(self, prompt: pb.Prompt) -> Sequence[int]:
        self.prompts.append(prompt)
        await self.gate.wait()
        if prompt.WhichOneof("input") == "text":
            return list(prompt.text.encode())
        turns = prompt.chat.messages
        if not turns:
            raise PromptError("the conversation is empty")
        if turns[0].role == "assistant":
            raise PromptError("the first turn must be the user's")
        return list(("".join(f"<{turn.role}>{turn.content}" for turn in turns) + "<assistant>").encode())

    def close(self) -> None:
        self.closed = True
