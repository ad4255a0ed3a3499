"""A plain HTTP/2 client that reads as much of its streams as the test says, pings when told, and may be impolite."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Self

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
)
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes

Header = tuple[str, str]
_FRAME_BYTES = 16_384


class RawClient:
    """One connection. `window`: bytes that the server may send on each stream; nothing is granted by itself."""

    def __init__(self, port: int, window: int = 65535) -> None:
        self._port = port
        self._window = window
        self._connection = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self.data: defaultdict[int, bytes] = defaultdict(bytes)
        self.headers: defaultdict[int, dict[str, str]] = defaultdict(dict)
        self.ended: set[int] = set()
        self.reset: dict[int, int] = {}
        self.goaway: bytes | None = None
        self.closed = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._connection.initiate_connection()
        self._connection.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: self._window})
        self._flush()
        self._reading = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._reading.cancel()
        self._writer.close()

    def call(
        self, method: str, message: bytes, *headers: Header, end_stream: bool = True, missing_bytes: int = 0
    ) -> int:
        """Begin a call with one message; its stream id. The message may lack its end, and the stream be left open."""
        stream = self._connection.get_next_available_stream_id()
        base = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", method),
            (":authority", "localhost"),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
        ]
        self._connection.send_headers(stream, [*base, *headers])
        framed = b"\x00" + len(message).to_bytes(4, "big") + message
        framed = framed[: len(framed) - missing_bytes]
        for start in range(0, len(framed), _FRAME_BYTES):
            is_last = start + _FRAME_BYTES >= len(framed)
            self._connection.send_data(stream, framed[start : start + _FRAME_BYTES], end_stream and is_last)
        self._flush()
        return stream

    def grant(self, stream: int, num_bytes: int) -> None:
        """Let the server send so much more on a stream."""
        self._connection.increment_flow_control_window(num_bytes, stream)
        self._flush()

    def cancel(self, stream: int) -> None:
        """Reset a stream, as a client does that cancels its call."""
        self._connection.reset_stream(stream, error_code=8)
        self._flush()

    def ping(self) -> None:
        """Send a PING."""
        self._connection.ping(b"\x00" * 8)
        self._flush()

    def messages(self, stream: int) -> list[bytes]:
        """The whole messages that have come on a stream."""
        found, data = [], self.data[stream]
        while len(data) >= 5 and len(data) >= 5 + (size := int.from_bytes(data[1:5], "big")):
            found.append(data[5 : 5 + size])
            data = data[5 + size :]
        return found

    def _flush(self) -> None:
        self._writer.write(self._connection.data_to_send())

    async def _read(self) -> None:
        # A frame at a time: h2 gives no events at all for data of which a later frame is not allowed, as after GOAWAY.
        try:
            while True:
                head = await self._reader.readexactly(9)
                frame = head + await self._reader.readexactly(int.from_bytes(head[:3], "big"))
                for event in self._connection.receive_data(frame):
                    self._take(event)
                self._flush()
        except (ConnectionError, asyncio.IncompleteReadError, ProtocolError):
            self.closed.set()

    def _take(self, event: Event) -> None:
        match event:
            case DataReceived(stream_id=stream, data=data, flow_controlled_length=size):
                self.data[stream] += data
                self._connection.increment_flow_control_window(size)  # of the connection; streams are granted by hand
            case (
                ResponseReceived(stream_id=stream, headers=headers)
                | TrailersReceived(stream_id=stream, headers=headers)
            ):
                self.headers[stream].update({str(key): str(value) for key, value in headers or ()})
            case StreamEnded(stream_id=stream):
                self.ended.add(stream)
            case StreamReset(stream_id=stream, error_code=code):
                self.reset[stream] = int(code)
            case ConnectionTerminated(additional_data=data):
                self.goaway = data or b""
