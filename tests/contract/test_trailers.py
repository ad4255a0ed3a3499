"""Trailers share 8 KiB: whatever a client sends, what comes back of it is short, and names the call."""

from __future__ import annotations

import pytest
from grpc_health.v1 import health_pb2
from weir.engine.errors import EngineFailedError, InvalidRequestError, QueueFullError, Violation
from weir.server.app import App
from weir.v1 import inference_pb2 as pb

from tests.contract.decode import eventually
from tests.contract.fake_engine import FakeEngine
from tests.contract.raw_client import Header, RawClient

GENERATE = "/weir.v1.InferenceService/Generate"
COMPLETE = "/weir.v1.InferenceService/Complete"
HEALTH = "/grpc.health.v1.Health/Check"
# gRPC refuses between 8 and 16 KiB at random; HTTP/2 counts 32 bytes for each entry besides its text.
MOST_BYTES = 6000
LONG = "日本語%" * 4000


async def trailers(app: App, method: str, message: bytes, *headers: Header) -> dict[str, str]:
    """The trailers of one call whose answer is read."""
    async with RawClient(app.port, window=2**20) as client:
        stream = client.call(method, message, *headers)
        await eventually(lambda: stream in client.ended)
        found = client.headers[stream]
    assert sum(len(key) + len(value) + 32 for key, value in found.items()) < MOST_BYTES
    return found


def request(**fields: object) -> bytes:
    return pb.CompleteRequest(**({"prompt": pb.Prompt(text="ab")} | fields)).SerializeToString()  # type: ignore[arg-type]


@pytest.mark.parametrize("method", [GENERATE, COMPLETE])
@pytest.mark.parametrize("given", ["x" * 129, "x" * 7000, "tab\tinside", "é", ""])
async def test_an_id_that_is_no_id_is_replaced_and_the_answer_arrives(app: App, method: str, given: str) -> None:
    found = await trailers(app, method, request(), ("x-request-id", given))
    assert found["grpc-status"] == "0"
    assert len(found["x-request-id"]) == 32
    assert found["x-request-id"].isalnum()


async def test_an_id_at_the_bound_comes_back(app: App) -> None:
    found = await trailers(app, COMPLETE, request(), ("x-request-id", "x" * 128))
    assert found["x-request-id"] == "x" * 128


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (COMPLETE, request(model=LONG)),
        (COMPLETE, request(request_id=LONG)),
        (COMPLETE, request(prompt=pb.Prompt(chat=pb.Chat(messages=[pb.ChatMessage(role=LONG, content="x")])))),
        (COMPLETE, request(params=pb.SamplingParams(stop=[LONG]))),
        (COMPLETE, b"\xff" * 16_000),
        (HEALTH, health_pb2.HealthCheckRequest(service=LONG).SerializeToString()),
        ("/weir.v1.InferenceService/Cancel", pb.CancelRequest(request_id=LONG).SerializeToString()),
        ("/weir.v1.InferenceService/Tokenize", pb.TokenizeRequest(model=LONG).SerializeToString()),
    ],
    ids=["model", "request_id", "role", "stop", "garbage", "health", "cancel", "tokenize"],
)
async def test_what_is_echoed_is_cut(app: App, method: str, message: bytes) -> None:
    await trailers(app, method, message)


@pytest.mark.parametrize(
    "error",
    [
        InvalidRequestError(tuple(Violation(f"prompt.{LONG}", LONG) for _ in range(1000))),
        InvalidRequestError((Violation("a", "%" * 10_000),)),
        EngineFailedError(LONG),
        QueueFullError(2**62, 2**62, 2**62, 2**62, 1e9, subject=f"the queue of tenant {LONG}"),
    ],
    ids=["violations", "percent", "engine", "queue"],
)
async def test_errors_of_any_length_arrive_with_their_id(app: App, engine: FakeEngine, error: Exception) -> None:
    engine.submit_error = error
    found = await trailers(app, COMPLETE, request(), ("x-request-id", "x" * 128))
    assert found["grpc-status"] != "0"
    assert found["x-request-id"] == "x" * 128
    assert "grpc-status-details-bin" in found


@pytest.mark.parametrize("method", [GENERATE, COMPLETE])
async def test_every_refusal_names_its_call_also_before_it_was_looked_at(
    app: App, engine: FakeEngine, method: str
) -> None:
    for message in (b"\xff", request(model="nope"), b""):
        assert len((await trailers(app, method, message))["x-request-id"]) == 32
    engine.reserve_error = QueueFullError(1, 0, 1, 1, 1.0)
    assert (await trailers(app, method, request(request_id="mine")))["x-request-id"] == "mine"
    app.lifecycle.drain()
    assert len((await trailers(app, method, request()))["x-request-id"]) == 32
    assert (await trailers(app, method, request(), ("x-request-id", "mine")))["x-request-id"] == "mine"
