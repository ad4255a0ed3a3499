"""The metadata keys that the server reads, and a plain view of a call's metadata."""

from __future__ import annotations

from collections.abc import Iterable

import grpc

AUTHORIZATION_KEY = "authorization"
REQUEST_ID_KEY = "x-request-id"
TENANT_KEY = "x-tenant-id"
MAX_ID_CHARS = 128


def text_metadata(context: grpc.aio.ServicerContext) -> dict[str, str]:
    """The text metadata of a call; the first of repeated keys, binary ones left out."""
    return text_of(context.invocation_metadata())


def text_of(metadata: Iterable[tuple[str, str | bytes]] | None) -> dict[str, str]:
    """The same of bare metadata. Who checks a call and who serves it must not read different ones of repeated keys."""
    found: dict[str, str] = {}
    for key, value in metadata or ():
        if isinstance(value, str):
            found.setdefault(key, value)
    return found


def is_valid_id(request_id: str) -> bool:
    """Whether a request may be called so: ids come back in trailers, which have little room and know ASCII only."""
    return 0 < len(request_id) <= MAX_ID_CHARS and request_id.isascii() and request_id.isprintable()


def given_id(context: grpc.aio.ServicerContext) -> str:
    """The `x-request-id` of a call; empty when there is none, or none that can be given back."""
    given = next((value for key, value in context.invocation_metadata() or () if key == REQUEST_ID_KEY), "")
    return given if isinstance(given, str) and is_valid_id(given) else ""
