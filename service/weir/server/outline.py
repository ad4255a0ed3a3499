"""Requests read one level deep: how large their parts are and how many, without building the parts.

Building two million empty turns from a message of four megabytes takes half a second and a hundred megabytes, on the
thread that serves everybody. Read as an outline, a type with the same fields that takes them as bytes, a message costs
little more than a copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from weir.v1 import inference_pb2 as pb

_FIELD = descriptor_pb2.FieldDescriptorProto


class RepeatedFieldError(ValueError):
    """A field that a message has once was sent several times."""

    def __init__(self, field: str, count: int) -> None:
        super().__init__(f"{field} is given {count} times")
        self.field = field
        self.count = count


@dataclass(frozen=True, slots=True)
class Outline:
    """Sizes of a request's parts, in bytes, and its turns. `rest_bytes` is what belongs to none of the parts."""

    text_bytes: int
    token_ids_bytes: int
    chat_bytes: int
    turns: int
    params_bytes: int
    rest_bytes: int


class OutlineReader:
    """Reads requests of one message type that has a `prompt` and may have `params`."""

    def __init__(self, message: type) -> None:
        self._request = _shallow(message, "prompt", "params")
        self._prompt = _shallow(pb.Prompt, "text", "token_ids", "chat")
        self._chat = _shallow(pb.Chat, "messages")
        self._has_params = "params" in message.DESCRIPTOR.fields_by_name  # type: ignore[attr-defined]

    def read(self, data: bytes) -> Outline:
        """The outline of a request. Raises RepeatedFieldError, and DecodeError for bytes that are no message."""
        request = self._request.FromString(data)
        prompt = self._prompt.FromString(_one("prompt", request.prompt))
        text, token_ids = _one("prompt.text", prompt.text), _one("prompt.token_ids", prompt.token_ids)
        chat = _one("prompt.chat", prompt.chat)
        params = _one("params", request.params) if self._has_params else b""
        return Outline(
            text_bytes=len(text),
            token_ids_bytes=len(token_ids),
            chat_bytes=len(chat),
            turns=len(self._chat.FromString(chat).messages) if chat else 0,
            params_bytes=len(params),
            rest_bytes=len(data) - len(text) - len(token_ids) - len(chat) - len(params),
        )


def _one(field: str, values: Sequence[bytes]) -> bytes:
    count = len(values)
    if count > 1:
        raise RepeatedFieldError(field, count)
    return values[0] if count else b""


def _shallow(message: type, *names: str) -> Any:
    """The class of a message that has these fields of `message`, as repeated bytes, and no others."""
    given = message.DESCRIPTOR  # type: ignore[attr-defined]
    package = f"outline.{given.name}"
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
    shallow = file.message_type.add(name=given.name)
    for field in (given.fields_by_name[name] for name in names if name in given.fields_by_name):
        shallow.field.add(name=field.name, number=field.number, type=_FIELD.TYPE_BYTES, label=_FIELD.LABEL_REPEATED)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{given.name}"))
