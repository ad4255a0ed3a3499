"""The metadata keys that the server reads, and a plain view of a call's metadata."""

from __future__ import annotations

import grpc

REQUEST_ID_KEY = "x-request-id"
TENANT_KEY = "x-tenant-id"


def text_metadata(context: grpc.aio.ServicerContext) -> dict[str, str]:
    """The text metadata of a call; the first of repeated keys, binary ones left out."""
    found: dict[str, str] = {}
    for key, value in context.invocation_metadata() or ():
        if isinstance(value, str):
            found.setdefault(key, value)
    return found
