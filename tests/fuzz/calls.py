"""Requests and metadata, made up and damaged, against a server: a status of the error table is the only way to fail."""

from __future__ import annotations

import asyncio
import io
import logging
import random
import string
import struct
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import ConnectionTerminated, ResponseReceived, StreamEnded, StreamReset, TrailersReceived
from h2.exceptions import ProtocolError
from weir.client import AsyncClient
from weir.config import TelemetrySettings
from weir.server.app import App
from weir.telemetry.logging import configure_logging
from weir.v1 import admin_pb2, budget_pb2
from weir.v1 import inference_pb2 as pb

from tests.contract.conftest import SETTINGS
from tests.contract.fake_engine import FakeEngine
from tests.contract.fake_tokenizer import ByteTokenizer
from tests.e2e.tiny_server import tiny_server
from tests.fuzz.mutation import damaged_bytes

_SERVICE = "/weir.v1.InferenceService/"
_METHODS: tuple[tuple[str, type[Message], bool], ...] = (
    (_SERVICE + "Complete", pb.CompleteRequest, False),
    (_SERVICE + "Generate", pb.GenerateRequest, True),
    (_SERVICE + "Tokenize", pb.TokenizeRequest, False),
    (_SERVICE + "Cancel", pb.CancelRequest, False),
    (_SERVICE + "GetModel", pb.GetModelRequest, False),
    ("/weir.v1.BudgetService/GetBudget", budget_pb2.GetBudgetRequest, False),
    ("/weir.v1.BudgetService/WatchBudget", budget_pb2.WatchBudgetRequest, True),
    ("/weir.v1.AdminService/Drain", admin_pb2.DrainRequest, False),
    ("/grpc.health.v1.Health/Check", health_pb2.HealthCheckRequest, False),
    ("/grpc.health.v1.Health/Watch", health_pb2.HealthCheckRequest, True),
    ("/xds.service.orca.v3.OpenRcaService/StreamCoreMetrics", health_pb2.HealthCheckRequest, True),
    (_SERVICE + "Nothing", pb.CompleteRequest, False),
)
# Those that end by themselves.
_ENDING = [name for name, _, is_stream in _METHODS if not is_stream or name.endswith("Generate")]
_INTEGERS = (0, 1, 2, 3, 5, 9, 10, 16, 17, 63, 64, 65, 255, 256, 1000, 2**31 - 1, -1, -(2**31))
_FLOATS = (
    0.0,
    0.1,
    0.5,
    1.0,
    1.0000001,
    2.0,
    100.0,
    100.1,
    -1.0,
    -2.0,
    -2.1,
    1e-320,
    1e308,
    *map(float, ("inf", "nan")),
)
_TEXTS = ("", "x", "user", "assistant", "é", "\0", "\U0010ffff", "a" * 256, "b" * 257, "c" * 5000, "echo", "liveness")
_TIMEOUTS_S = (None, None, None, 0.001, 0.05)
_ANSWER_S = 20.0
_AT_ONCE = 16
_WORD = "internal error"


class FoundError(AssertionError):
    """What must not be: an internal error, a traceback in the log, no answer, something that is kept."""


class Faults(logging.Handler):
    """Collects what the server logs as an error."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.messages: list[str] = []
        self.setFormatter(logging.Formatter())

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the record as text."""
        self.messages.append(self.format(record))

    def check(self) -> None:
        """Raise FoundError for what came since the last check."""
        if self.messages:
            messages, self.messages = self.messages, []
            raise FoundError("logged as an error:\n" + "\n".join(messages))


class _Server:
    """A server in this process, over an engine that echoes, and a connection to it."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(lambda _, context: self.faults.messages.append(str(context)))
        self._resources = AsyncExitStack()
        configure_logging(TelemetrySettings(log_level="error"), io.StringIO())
        self.faults = Faults()
        logging.getLogger().addHandler(self.faults)

    def run(self, coroutine: Any) -> Any:
        """On the loop of the server."""
        return self._loop.run_until_complete(coroutine)

    async def echo(self) -> App:
        """Ready, over the fake engine."""
        self._engine = FakeEngine()
        app = App(SETTINGS, self._engine, ByteTokenizer())
        await app.start()
        self._engine.load()
        await app.lifecycle.changed(0, timeout_s=5)
        self._resources.push_async_callback(app.shut_down)
        return app

    async def enter(self, context: Any) -> Any:
        """A resource that is given back by `close`."""
        return await self._resources.enter_async_context(context)

    def close(self) -> None:
        """Stop. Raises FoundError for what was logged meanwhile."""
        self.run(self._resources.aclose())
        logging.getLogger().removeHandler(self.faults)
        self.faults.check()


class Requests:
    """Any method, with a message of edge values that may be damaged in its bytes."""

    def __init__(self, folder: Path) -> None:
        self._server = _Server()
        self._server.run(self._start())

    def once(self, dice: random.Random) -> str:
        """How one call ends."""
        method, kind, is_stream = dice.choice(_METHODS[:2] if dice.random() < 0.6 else _METHODS)
        message = made_up(dice, kind())
        data = message.SerializeToString()
        if dice.random() < 0.5:
            data = damaged_bytes(dice, data)
        timeout_s = dice.choice(_TIMEOUTS_S) if method in _ENDING else 0.02
        code = self._server.run(_call(self._channel, method, data, is_stream, timeout_s))
        self._server.faults.check()
        return code

    def close(self) -> None:
        """Raises FoundError when something is held still."""
        engine = self._server._engine
        self._server.run(_eventually_free(engine))
        self._server.run(self._channel.close())
        self._server.close()

    async def _start(self) -> None:
        app = await self._server.echo()
        self._channel = grpc.aio.insecure_channel(f"127.0.0.1:{app.port}")


class Generations:
    """Legal and nearly legal parameters, computed by a real engine; nothing is held afterwards."""

    def __init__(self, folder: Path) -> None:
        self._server = _Server()
        self._server.run(self._start(folder))

    def once(self, dice: random.Random) -> str:
        """How the first of eight calls at once ends."""
        codes = self._server.run(self._some(dice))
        self._server.faults.check()
        return str(codes[0])

    def close(self) -> None:
        """Raises FoundError when the KV pool isn't given back."""
        budget = self._server.run(self._client.budget())
        if budget.kv_used_tokens or budget.running_requests or budget.queued_requests:
            raise FoundError(f"still held: {budget}")
        self._server.run(self._client.close())
        self._server.run(self._channel.close())
        self._server.close()

    async def _start(self, folder: Path) -> None:
        server = await self._server.enter(tiny_server(folder))
        self._channel, self._client = grpc.aio.insecure_channel(server.target), AsyncClient(server.target)

    async def _some(self, dice: random.Random) -> list[str]:
        calls = []
        for _ in range(8):
            is_stream = dice.random() < 0.5
            request = pb.GenerateRequest() if is_stream else pb.CompleteRequest()
            made_up(dice, request.params, wild=dice.random() < 0.1)
            request.params.max_tokens = dice.choice((1, 2, 8, 30))
            request.prompt.token_ids.ids.extend(dice.choices(range(256), k=dice.choice((1, 1, 31, 32, 33, 100))))
            if dice.random() < 0.3:
                request.n = dice.choice((1, 2, 3, 8))
            if dice.random() < 0.3:
                request.priority = dice.randrange(10)
            method = _SERVICE + ("Generate" if is_stream else "Complete")
            calls.append(_call(self._channel, method, request.SerializeToString(), is_stream, None, whole=True))
        return list(await asyncio.gather(*calls))


class Metadata:
    """Headers as no library would send them, sixteen calls at once, each over a connection of its own."""

    def __init__(self, folder: Path) -> None:
        self._server = _Server()
        self._port = self._server.run(self._server.echo()).port

    def once(self, dice: random.Random) -> str:
        """How the first of the calls ends: by a status, or with its connection."""
        ends = self._server.run(self._some([_headers(dice) for _ in range(_AT_ONCE)]))
        self._server.faults.check()
        return ends[0]

    async def _some(self, calls: list[list[tuple[bytes, bytes]]]) -> list[str]:
        return await asyncio.gather(*(_raw_call(self._port, headers, _FRAMED) for headers in calls))

    def close(self) -> None:
        """Raises FoundError when something is held still."""
        self._server.run(_eventually_free(self._server._engine))
        self._server.close()


def made_up(dice: random.Random, message: Any, wild: bool = True) -> Any:
    """A message with some of its fields set, to values at and past edges; `wild`: not only to what may be legal."""
    for field in message.DESCRIPTOR.fields:
        if dice.random() < (0.4 if field.type == FieldDescriptor.TYPE_MESSAGE else 0.7):
            continue
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            for _ in range(dice.choice((1, 2, 5))):
                getattr(message, field.name)[_value(dice, FieldDescriptor.TYPE_INT32, wild)] = _value(
                    dice, FieldDescriptor.TYPE_DOUBLE, wild
                )
        elif field.is_repeated:
            values = getattr(message, field.name)
            for _ in range(dice.choice((1, 2, 17 if wild else 3))):
                if field.type == FieldDescriptor.TYPE_MESSAGE:
                    made_up(dice, values.add(), wild)
                else:
                    values.append(_value(dice, field.type, wild))
        elif field.type == FieldDescriptor.TYPE_MESSAGE:
            getattr(message, field.name).SetInParent()
            made_up(dice, getattr(message, field.name), wild)
        else:
            setattr(message, field.name, _value(dice, field.type, wild))
    return message


def _value(dice: random.Random, kind: int, wild: bool) -> Any:
    match kind:
        case FieldDescriptor.TYPE_STRING:
            return dice.choice(_TEXTS if wild else _TEXTS[1:8])
        case FieldDescriptor.TYPE_BOOL:
            return dice.random() < 0.5
        case FieldDescriptor.TYPE_DOUBLE | FieldDescriptor.TYPE_FLOAT:
            return dice.choice(_FLOATS if wild else _FLOATS[1:4])
        case FieldDescriptor.TYPE_UINT64:
            return dice.choice((0, 1, 2**63, 2**64 - 1))
        case _:
            return dice.choice(_INTEGERS if wild else _INTEGERS[1:6])


async def _call(
    channel: grpc.aio.Channel, method: str, data: bytes, is_stream: bool, timeout_s: float | None, whole: bool = False
) -> str:
    """The name of the status. A stream is cancelled after its first message, unless it is wanted whole."""
    try:
        async with asyncio.timeout(_ANSWER_S):
            if not is_stream:
                await channel.unary_unary(method)(data, timeout=timeout_s)
                return "OK"
            call = channel.unary_stream(method)(data, timeout=timeout_s)
            while await call.read() is not grpc.aio.EOF:
                if not whole:
                    call.cancel()
                    return "OK"
            return "OK"
    except grpc.aio.AioRpcError as error:
        code = error.code()
        if code in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.CANCELLED):
            raise FoundError(f"{method}: {code.name}: {error.details()}") from None
        return str(code.name)
    except TimeoutError:
        raise FoundError(f"{method}: no answer in {_ANSWER_S} s") from None


async def _eventually_free(engine: FakeEngine) -> None:
    try:
        async with asyncio.timeout(_ANSWER_S):
            while engine.gate.requests or engine.gate.tokens or engine.streams:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    except TimeoutError:
        held = (engine.gate.requests, engine.gate.tokens, len(engine.streams))
        raise FoundError(f"requests, tokens, streams are held still: {held}") from None


def _headers(dice: random.Random) -> list[tuple[bytes, bytes]]:
    """Those of a call, some of them changed, and some that the server reads."""
    headers = [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", dice.choice(_ENDING).encode()),
        (b":authority", b"localhost"),
        (b"content-type", b"application/grpc"),
        (b"te", b"trailers"),
    ]
    if dice.random() < 0.3:
        at = dice.randrange(len(headers))
        headers[at] = (headers[at][0], _header_value(dice))
    for _ in range(dice.choice((0, 1, 2, 5))):
        headers.append((_header_name(dice), _header_value(dice)))
    return headers


def _header_name(dice: random.Random) -> bytes:
    known = ("x-request-id", "x-tenant-id", "traceparent", "tracestate", "baggage", "authorization", "grpc-timeout")
    known += ("grpc-encoding", "grpc-accept-encoding", "grpc-trace-bin", "user-agent", "grpc-previous-rpc-attempts")
    if dice.random() < 0.8:
        return dice.choice(known).encode()
    return "".join(dice.choices(string.ascii_lowercase + "-._0 A:", k=dice.choice((1, 8, 200)))).encode()


def _header_value(dice: random.Random) -> bytes:
    values = (b"", b"x", b"y" * 128, b"z" * 129, b"w" * 9000, b"1S", b"0n", b"-1S", b"99999999H", b"999999999H", b"5m")
    values += (
        b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        b"00-" + b"0" * 32 + b"-" + b"0" * 16 + b"-00",
    )
    values += (
        b"ff-0-0-0",
        b"Bearer x",
        b"Bearer ",
        b"Basic \xff",
        b"gzip",
        b"identity,gzip",
        b"a=b,c=d",
        b"=" * 600,
        b"AAA=",
    )
    value = dice.choice(values)
    return damaged_bytes(dice, value) if dice.random() < 0.4 else value


def _frame(message: Message) -> bytes:
    data = message.SerializeToString()
    return struct.pack("!BI", 0, len(data)) + data


_FRAMED = _frame(pb.CompleteRequest(prompt=pb.Prompt(text="hi"), params=pb.SamplingParams(max_tokens=2)))


async def _raw_call(port: int, headers: list[tuple[bytes, bytes]], body: bytes) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    connection = H2Connection(
        H2Configuration(
            header_encoding=None,
            validate_outbound_headers=False,
            normalize_outbound_headers=False,
            validate_inbound_headers=False,
        )
    )
    connection.initiate_connection()
    connection.send_headers(1, headers)
    connection.send_data(1, body, end_stream=True)
    writer.write(connection.data_to_send())
    try:
        async with asyncio.timeout(_ANSWER_S):
            return await _end_of(connection, reader, writer)
    except TimeoutError:
        raise FoundError(f"no answer in {_ANSWER_S} s") from None
    finally:
        writer.close()


async def _end_of(connection: H2Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
    found: dict[bytes, bytes] = {}
    while True:
        try:
            data = await reader.read(65536)
            events = connection.receive_data(data) if data else []
        except (ConnectionError, ProtocolError):
            return "connection closed"
        if not data:
            return "connection closed"
        writer.write(connection.data_to_send())
        for event in events:
            match event:
                case ResponseReceived(headers=got) | TrailersReceived(headers=got):
                    found.update(got or ())
                case StreamReset():
                    return "stream reset"
                case ConnectionTerminated():
                    return "goaway"
                case StreamEnded():
                    return _status(found)
                case _:
                    pass


def _status(found: dict[bytes, bytes]) -> str:
    if found.get(b"grpc-message", b"").startswith(_WORD.encode()):
        raise FoundError(f"an internal error: {found}")
    return f"status {found.get(b'grpc-status', found.get(b':status', b'none')).decode()}"
