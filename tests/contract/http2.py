"""One gRPC call by a plain HTTP/2 client, to see trailers that gRPC's own library keeps to itself."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping
from dataclasses import dataclass

from google.rpc import error_details_pb2
from google.rpc.status_pb2 import Status
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, Event, ResponseReceived, StreamEnded, TrailersReceived


@dataclass(frozen=True)
class RawRefusal:
    """What the trailers of a failed call say."""

    code: int
    message: str
    reason: str | None
    pushback: str | None


def refusal_in(trailers: Mapping[str, str]) -> RawRefusal:
    """Read trailers as they are on the wire: binary values in base64."""
    encoded = trailers.get("grpc-status-details-bin", "")
    info = error_details_pb2.ErrorInfo()
    for detail in Status.FromString(base64.b64decode(encoded + "=" * (-len(encoded) % 4))).details:
        detail.Unpack(info)
    return RawRefusal(
        int(trailers["grpc-status"]),
        trailers.get("grpc-message", ""),
        info.reason or None,
        trailers.get("grpc-retry-pushback-ms"),
    )


async def trailers_of(port: int, method: str, message: bytes) -> dict[str, bytes]:
    """The trailing metadata of a call with one request message; binary values decoded."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    connection = H2Connection(H2Configuration(client_side=True, header_encoding=None))
    connection.initiate_connection()
    headers = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", method),
        (":authority", "localhost"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ]
    connection.send_headers(1, headers)
    connection.send_data(1, b"\x00" + len(message).to_bytes(4, "big") + message, end_stream=True)
    found: dict[str, bytes] = {}
    ended = False
    while not ended:
        writer.write(connection.data_to_send())
        for event in connection.receive_data(await reader.read(65536)):
            found.update(_metadata(event))
            ended = ended or isinstance(event, StreamEnded)
            if isinstance(event, DataReceived):
                connection.acknowledge_received_data(event.flow_controlled_length, 1)
    writer.close()
    return found


def _metadata(event: Event) -> dict[str, bytes]:
    # A call that fails before its first message has one block of headers, which is its trailers too.
    if not isinstance(event, TrailersReceived | ResponseReceived):
        return {}
    return {key.decode(): _value(key, value) for key, value in event.headers or ()}


def _value(key: bytes, value: bytes) -> bytes:
    return base64.b64decode(value + b"=" * (-len(value) % 4)) if key.endswith(b"-bin") else value
