"""A Secret as client-go sends it: protobuf behind a magic number (k8s.io/api/core/v1/generated.proto)."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

MAGIC = b"k8s\x00"


def decode_secret(body: bytes) -> dict[str, Any]:
    """The same object as JSON has it. Raises ValueError when it is something else."""
    if not body.startswith(MAGIC):
        raise ValueError("not protobuf of Kubernetes")
    envelope = _fields(body[len(MAGIC) :])
    if _text(_fields(_one(envelope, 1)), 2) != "Secret":
        raise ValueError("protobuf of another kind than Secret")
    secret = _fields(_one(envelope, 2))
    metadata = _fields(_one(secret, 1))
    labels = {_text(entry, 1): _text(entry, 2) for entry in map(_fields, metadata.get(11, []))}
    data = {_text(e, 1): base64.b64encode(_one(e, 2)).decode() for e in map(_fields, secret.get(2, []))}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": _text(metadata, 1), "namespace": _text(metadata, 3), "labels": labels},
        "data": data,
        "type": _text(secret, 3),
    }


def _fields(body: bytes) -> dict[int, list[bytes]]:
    found: dict[int, list[bytes]] = {}
    for number, value in _walk(body):
        found.setdefault(number, []).append(value)
    return found


def _walk(body: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < len(body):
        tag, at = _varint(body, at)
        match tag & 7:
            case 0:
                _, at = _varint(body, at)
            case 2:
                length, at = _varint(body, at)
                yield tag >> 3, body[at : at + length]
                at += length
            case kind:
                raise ValueError(f"wire type {kind}")


def _varint(body: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (body[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if not body[at - 1] & 0x80:
            return value, at


def _one(fields: dict[int, list[bytes]], number: int) -> bytes:
    return fields.get(number, [b""])[-1]


def _text(fields: dict[int, list[bytes]], number: int) -> str:
    return _one(fields, number).decode()
