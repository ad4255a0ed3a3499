"""Every row of the error table: code, google.rpc details, trailers; over the wire, decoded with Google's classes."""

from __future__ import annotations

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from weir.engine.errors import (
    DeadlineError,
    EngineFailedError,
    InvalidRequestError,
    QueueFullError,
    RequestError,
    Violation,
)
from weir.server.app import App
from weir.v1 import inference_pb2 as pb
from weir.v1 import inference_pb2_grpc

from tests.contract.decode import Refusal, refusal
from tests.contract.fake_engine import FakeEngine

QUEUE_FULL = QueueFullError(
    needed_tokens=120, free_tokens=8, queued_tokens=4000, queued_requests=33, retry_after_s=1.2345, subject="queue"
)


@pytest.fixture
def stub(channel: grpc.aio.Channel) -> inference_pb2_grpc.InferenceServiceStub:
    return inference_pb2_grpc.InferenceServiceStub(channel)


async def unary(stub: inference_pb2_grpc.InferenceServiceStub) -> Refusal:
    return await refusal(stub.Complete(pb.CompleteRequest(prompt=pb.Prompt(text="x"))))


async def stream(stub: inference_pb2_grpc.InferenceServiceStub) -> Refusal:
    call = stub.Generate(pb.GenerateRequest(prompt=pb.Prompt(text="x")))
    return await refusal(call.read())


@pytest.mark.parametrize("call", [unary, stream])
@pytest.mark.usefixtures("app")
class TestRefusals:
    async def test_a_full_queue_says_what_is_missing_and_when_to_retry(self, stub, engine: FakeEngine, call) -> None:  # type: ignore[no-untyped-def]
        engine.reserve_error = QUEUE_FULL
        refused = await call(stub)
        assert refused.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        info = refused.details["ErrorInfo"]
        assert (info.reason, info.domain) == ("KV_BUDGET_EXHAUSTED", "weir.v1.InferenceService")
        assert dict(info.metadata) == {
            "needed_tokens": "120",
            "free_tokens": "8",
            "queued_tokens": "4000",
            "queued_requests": "33",
        }
        # 1234.5 ms, rounded up: a client that obeys must not come back too early.
        assert refused.details["RetryInfo"].retry_delay == Duration(seconds=1, nanos=235_000_000)
        assert [v.subject for v in refused.details["QuotaFailure"].violations] == ["queue"]
        assert refused.trailers["grpc-retry-pushback-ms"] == "1235"

    async def test_a_request_that_can_never_fit_names_its_fields_and_forbids_a_retry(  # type: ignore[no-untyped-def]
        self, stub, engine: FakeEngine, call
    ) -> None:
        engine.submit_error = InvalidRequestError(
            (
                Violation("max_tokens", "the request needs 600 KV tokens; at most 400 can ever be free"),
                Violation("prompt", "x"),
            )
        )
        refused = await call(stub)
        assert refused.code is grpc.StatusCode.INVALID_ARGUMENT
        assert [(v.field, v.description) for v in refused.details["BadRequest"].field_violations] == [
            ("params.max_tokens", "the request needs 600 KV tokens; at most 400 can ever be free"),
            ("prompt", "x"),
        ]
        assert "RetryInfo" not in refused.details
        assert refused.trailers["grpc-retry-pushback-ms"] == "-1"

    @pytest.mark.parametrize(
        ("error", "reason"),
        [
            (DeadlineError(waited_s=0.0, in_queue=True, estimated_wait_s=9.5), "DEADLINE_IN_QUEUE"),
            (DeadlineError(waited_s=2.0, in_queue=False), "DEADLINE_EXCEEDED"),
        ],
    )
    async def test_a_deadline_that_cannot_be_met(  # type: ignore[no-untyped-def]
        self, stub, engine: FakeEngine, call, error: RequestError, reason: str
    ) -> None:
        engine.submit_error = error
        refused = await call(stub)
        assert refused.code is grpc.StatusCode.DEADLINE_EXCEEDED
        assert refused.details["ErrorInfo"].reason == reason
        assert float(refused.details["ErrorInfo"].metadata["estimated_wait_s"]) == error.estimated_wait_s  # type: ignore[attr-defined]
        assert refused.trailers["grpc-retry-pushback-ms"] == "-1"

    async def test_a_dead_engine(self, stub, engine: FakeEngine, call) -> None:  # type: ignore[no-untyped-def]
        engine.submit_error = EngineFailedError("killed by signal 9")
        refused = await call(stub)
        assert refused.code is grpc.StatusCode.UNAVAILABLE
        assert refused.details["ErrorInfo"].reason == "ENGINE_FAILED"
        assert refused.trailers["grpc-retry-pushback-ms"] == "1000"

    async def test_an_engine_that_hangs(self, stub, engine: FakeEngine, call) -> None:  # type: ignore[no-untyped-def]
        engine.heartbeat.busy, engine.heartbeat.step_age_s = True, 60.1
        refused = await call(stub)
        assert refused.code is grpc.StatusCode.UNAVAILABLE
        assert refused.details["ErrorInfo"].reason == "ENGINE_STALLED"
        assert refused.details["RetryInfo"].retry_delay == Duration(seconds=1)
        assert refused.trailers["grpc-retry-pushback-ms"] == "1000"
        assert engine.submitted == []
        engine.heartbeat.step_age_s = 59.9
        assert (await stub.Complete(pb.CompleteRequest(prompt=pb.Prompt(text="x")))).choices[0].text == "x"

    async def test_a_draining_server(self, stub, app: App, call) -> None:  # type: ignore[no-untyped-def]
        app.lifecycle.drain()
        refused = await call(stub)
        assert refused.code is grpc.StatusCode.UNAVAILABLE
        assert refused.details["ErrorInfo"].reason == "DRAINING"
        assert refused.details["RetryInfo"].retry_delay == Duration(seconds=1)
        assert refused.trailers["grpc-retry-pushback-ms"] == "1000"

    async def test_an_exception_nobody_expected_is_internal_and_tells_nothing_of_the_inside(  # type: ignore[no-untyped-def]
        self, stub, engine: FakeEngine, call
    ) -> None:
        engine.submit_error = KeyError("secret")
        refused = await call(stub)
        assert refused.code is grpc.StatusCode.INTERNAL
        assert refused.message == "internal error; the server's log has the details"
        assert refused.trailers["grpc-retry-pushback-ms"] == "-1"
        assert (engine.gate.requests, engine.gate.tokens, engine.streams) == (0, 0, set())


@pytest.mark.parametrize("call", [unary, stream])
async def test_a_loading_server(stub, loading: App, call) -> None:  # type: ignore[no-untyped-def]
    refused = await call(stub)
    assert refused.code is grpc.StatusCode.UNAVAILABLE
    assert refused.details["ErrorInfo"].reason == "MODEL_LOADING"
    assert refused.details["RetryInfo"].retry_delay == Duration(seconds=5)
    assert refused.trailers["grpc-retry-pushback-ms"] == "5000"


@pytest.mark.usefixtures("app")
async def test_a_thousand_violations_still_fit_into_the_trailers(stub, engine: FakeEngine) -> None:  # type: ignore[no-untyped-def]
    many = tuple(Violation(f"prompt.token_ids[{i}]", "日本語 " * 100) for i in range(1000))
    engine.submit_error = InvalidRequestError(many)
    refused = await unary(stub)
    assert refused.code is grpc.StatusCode.INVALID_ARGUMENT
    assert refused.details["BadRequest"].field_violations[0].field == "prompt.token_ids[0]"


@pytest.mark.usefixtures("app")
async def test_a_refused_stream_has_sent_no_initial_metadata_so_that_grpc_may_retry_it(
    stub, engine: FakeEngine
) -> None:  # type: ignore[no-untyped-def]
    engine.reserve_error = QUEUE_FULL
    call = stub.Generate(pb.GenerateRequest(prompt=pb.Prompt(text="x")))
    await refusal(call.read())
    # A trailers-only answer: what C-core's retry filter asks for.
    assert tuple(await call.initial_metadata()) == ()
