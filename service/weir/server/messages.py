"""Requests from bytes, on the event loop: none beyond the limits, and large ones one at a time.

Parsing holds the interpreter until it is done. gRPC would parse each message as it comes, ten of them without a turn
for anybody else; here the loop serves the others between two large ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

from google.protobuf.message import DecodeError

from weir.engine.errors import InvalidRequestError, UnavailableError, Violation
from weir.server.inference import SERVICE as INFERENCE_SERVICE
from weir.server.lifecycle import LOADING_RETRY_S
from weir.server.limits import OTHER_BYTES, REST_BYTES, MessageLimits
from weir.server.outline import Outline, OutlineReader, RepeatedFieldError
from weir.v1 import inference_pb2 as pb

# Takes a millisecond or two at most, whatever is in it.
_SMALL_BYTES = 16 * 2**10
_WITH_PROMPT = {"Generate": pb.GenerateRequest, "Complete": pb.CompleteRequest, "Tokenize": pb.TokenizeRequest}


class MessageParser:
    """One for each server. `limits` gives None while the model is loading."""

    def __init__(self, limits: Callable[[], MessageLimits | None]) -> None:
        self._limits = limits
        self._outlines = {f"/{INFERENCE_SERVICE}/{name}": OutlineReader(kind) for name, kind in _WITH_PROMPT.items()}
        self._one_at_a_time = asyncio.Lock()

    async def parse(self, method: str, deserialize: Callable[[bytes], Any], data: bytes) -> Any:
        """The request in `data`.

        Raises InvalidRequestError when it is too large or none, and UnavailableError when a large one comes while the
        model is loading.
        """
        try:
            if len(data) <= _SMALL_BYTES:
                self._check(method, data)
                return deserialize(data)
            async with self._one_at_a_time:
                await asyncio.sleep(0)
                self._check(method, data)
                return deserialize(data)
        except DecodeError as error:
            raise _invalid("request", str(error)) from None

    def _check(self, method: str, data: bytes) -> None:
        reader, limits = self._outlines.get(method), self._limits()
        if reader is None:
            _check_size(data, OTHER_BYTES)
        elif limits is not None:
            _check_size(data, limits.request_bytes)
            try:
                violations = tuple(_beyond(reader.read(data), limits))
            except RepeatedFieldError as error:
                raise _invalid(error.field, f"is given {error.count} times") from None
            if violations:
                raise InvalidRequestError(violations)
        elif len(data) > _SMALL_BYTES:
            raise UnavailableError("MODEL_LOADING", LOADING_RETRY_S)


def _check_size(data: bytes, most: int) -> None:
    if len(data) > most:
        raise _invalid("request", f"has {len(data)} bytes; at most {most} are taken here")


def _beyond(outline: Outline, limits: MessageLimits) -> Iterator[Violation]:
    for field, size, most in (
        ("prompt.text", outline.text_bytes, limits.prompt_bytes),
        ("prompt.token_ids", outline.token_ids_bytes, limits.prompt_bytes),
        ("prompt.chat", outline.chat_bytes, limits.prompt_bytes),
        ("params", outline.params_bytes, limits.params_bytes),
        ("request", outline.rest_bytes, REST_BYTES),
    ):
        if size > most:
            yield Violation(field, f"has {size} bytes; the server takes {most}")
    if outline.turns > limits.prompt_entries:
        yield Violation("prompt.chat", f"has {outline.turns} turns; the model takes {limits.prompt_entries} tokens")


def _invalid(field: str, description: str) -> InvalidRequestError:
    return InvalidRequestError((Violation(field, description),))
