"""A tokenizer whose tokens are bytes, so that every expected id can be worked out by hand."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

from weir.models.errors import PromptError


class ByteTokenizer:
    """`gate` holds every encode call until it is set."""

    def __init__(self) -> None:
        self.token_bytes = [bytes([value]) for value in range(256)]
        self.gate = threading.Event()
        self.gate.set()
        self.threads: set[str] = set()

    def encode(self, text: str) -> list[int]:
        self.threads.add(threading.current_thread().name)
        self.gate.wait(timeout=10)
        return list(text.encode())

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        if messages[0]["role"] == "assistant":
            raise PromptError("the first turn must be the user's")
        return self.encode("".join(f"<{m['role']}>{m['content']}" for m in messages) + "<assistant>")
