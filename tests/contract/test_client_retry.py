"""The client calls again exactly when the server says so, and only while nothing was answered."""

from __future__ import annotations

import asyncio
import time

import grpc
import pytest
from weir.client import (
    AsyncClient,
    BudgetExhaustedError,
    Client,
    DeadlineError,
    InvalidRequestError,
    UnavailableError,
    WeirError,
)
from weir.client.errors import Failure
from weir.client.retry import Attempts
from weir.engine.errors import InvalidRequestError as Impossible
from weir.engine.errors import QueueFullError, RequestError, Violation
from weir.engine.errors import UnavailableError as NotNow
from weir.server.app import App

from tests.contract.fake_engine import FakeEngine


class RefusingEngine(FakeEngine):
    """Refuses the first reservations with the given errors, and notes when each came."""

    def __init__(self, *errors: RequestError) -> None:
        super().__init__()
        self.errors = list(errors)
        self.reserved_at: list[float] = []

    def reserve(self, tokens_upper_bound: int, tenant: str):  # type: ignore[no-untyped-def]
        self.reserved_at.append(time.monotonic())
        if self.errors:
            raise self.errors.pop(0)
        return super().reserve(tokens_upper_bound, tenant)

    @property
    def gaps_s(self) -> list[float]:
        return [later - earlier for earlier, later in zip(self.reserved_at, self.reserved_at[1:], strict=False)]


def full(retry_after_s: float) -> QueueFullError:
    return QueueFullError(
        needed_tokens=20, free_tokens=4, queued_tokens=100, queued_requests=5, retry_after_s=retry_after_s
    )


@pytest.fixture
async def engine() -> RefusingEngine:
    return RefusingEngine()


@pytest.fixture
async def patient(app: App):  # type: ignore[no-untyped-def]
    async with AsyncClient(f"127.0.0.1:{app.port}", max_attempts=3) as client:
        yield client


async def test_unary_and_streaming_wait_as_long_as_the_pushback_says(
    patient: AsyncClient, engine: RefusingEngine
) -> None:
    engine.errors = [full(0.2), NotNow("DRAINING", 0.1)]
    assert (await patient.complete("ab", max_tokens=2)).text == "ab"
    assert len(engine.reserved_at) == 3
    assert engine.gaps_s[0] >= 0.2
    assert engine.gaps_s[1] >= 0.1
    engine.errors = [full(0.2)]
    assert [delta.text async for delta in patient.generate("ab", max_tokens=2)] == ["a", "b"]
    assert engine.gaps_s[-1] >= 0.2


async def test_the_sync_client_does_the_same(app: App, engine: RefusingEngine) -> None:
    def calls() -> tuple[str, list[str]]:
        with Client(f"127.0.0.1:{app.port}") as client:
            engine.errors = [full(0.1)]
            whole = client.complete("ab", max_tokens=2).text
            engine.errors = [full(0.1)]
            return whole, [delta.text for delta in client.generate("ab", max_tokens=2)]

    assert await asyncio.to_thread(calls) == ("ab", ["a", "b"])
    assert len(engine.reserved_at) == 4


async def test_attempts_are_bounded_and_the_last_error_carries_its_numbers(
    patient: AsyncClient, engine: RefusingEngine
) -> None:
    engine.errors = [full(0.01) for _ in range(9)]
    with pytest.raises(BudgetExhaustedError) as caught:
        await patient.complete("x")
    assert len(engine.reserved_at) == 3
    error = caught.value
    assert (error.needed_tokens, error.free_tokens, error.queued_tokens, error.queued_requests) == (20, 4, 100, 5)
    assert error.retry_after_s == 0.01
    assert error.code == "RESOURCE_EXHAUSTED"
    assert error.reason == "KV_BUDGET_EXHAUSTED"


async def test_a_negative_pushback_means_never(patient: AsyncClient, engine: RefusingEngine) -> None:
    engine.errors = [Impossible((Violation("prompt", "no"),))]
    with pytest.raises(InvalidRequestError):
        await patient.complete("x")
    assert len(engine.reserved_at) == 1


async def test_a_pause_that_outlasts_the_timeout_is_not_waited_for(
    patient: AsyncClient, engine: RefusingEngine
) -> None:
    engine.errors = [full(60.0)]
    began = time.monotonic()
    with pytest.raises(BudgetExhaustedError):
        await patient.complete("x", timeout_s=5)
    assert time.monotonic() - began < 5


async def test_a_stream_that_has_answered_is_never_started_again(
    app: App, patient: AsyncClient, engine: RefusingEngine
) -> None:
    engine.decoding.clear()
    engine.ungated_tokens = 1
    stream = patient.generate("abc")
    assert (await anext(stream)).text == "a"
    app.live.interrupt_all(NotNow("DRAINING", 0.01))
    with pytest.raises(UnavailableError):
        await anext(stream)
    assert len(engine.reserved_at) == 1
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


async def test_an_unreachable_server_is_unavailable_at_once_because_nobody_pushed_back() -> None:
    async with AsyncClient("127.0.0.1:1", max_attempts=5) as client:
        with pytest.raises(UnavailableError) as caught:
            await client.complete("x")
    assert caught.value.reason is None
    assert caught.value.retry_after_s is None


async def test_wait_ready_waits_for_the_model_and_gives_up_in_time(loading: App, engine: RefusingEngine) -> None:
    async with AsyncClient(f"127.0.0.1:{loading.port}") as client:
        with pytest.raises(TimeoutError, match="not ready"):
            await client.wait_ready(0.2)
        waiting = asyncio.create_task(client.wait_ready(5))
        engine.load()
        await waiting


async def test_grpcs_own_retry_honours_the_pushback_too(app: App, engine: RefusingEngine) -> None:
    """What a client in another language gets by its service config."""
    config = (
        '{"methodConfig": [{"name": [{}], "retryPolicy": {"maxAttempts": 3, "initialBackoff": "9s", "maxBackoff": "9s",'
        ' "backoffMultiplier": 1, "retryableStatusCodes": ["UNAVAILABLE", "RESOURCE_EXHAUSTED"]}}]}'
    )
    engine.errors = [full(0.1), full(0.1)]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{app.port}", [("grpc.service_config", config)]) as channel:
        call = channel.unary_unary("/weir.v1.InferenceService/Complete")
        await call(b"\x1a\x03\x0a\x01x", timeout=5)
    assert len(engine.reserved_at) == 3
    assert min(engine.gaps_s) >= 0.1


class TestAttempts:
    """The rule alone, on a clock set by hand."""

    @staticmethod
    def error(pushback_s: float | None) -> WeirError:
        return WeirError(Failure("UNAVAILABLE", "", pushback_s=pushback_s))

    def test_the_timeout_spans_all_attempts(self) -> None:
        now = 100.0
        attempts = Attempts(max_attempts=5, timeout_s=2.0, clock=lambda: now)
        assert attempts.timeout_s() == 2.0
        assert attempts.pause_s(self.error(0.5)) == 0.5
        now = 101.0
        assert attempts.timeout_s() == 1.0
        with pytest.raises(WeirError):
            attempts.pause_s(self.error(1.0))

    def test_no_pushback_is_no_retry(self) -> None:
        with pytest.raises(WeirError):
            Attempts(max_attempts=5, timeout_s=None).pause_s(self.error(None))


async def test_a_deadline_is_never_retried(patient: AsyncClient, engine: RefusingEngine) -> None:
    engine.decoding.clear()
    with pytest.raises(DeadlineError) as caught:
        await patient.complete("x", timeout_s=0.1)
    assert len(engine.reserved_at) == 1
    assert not caught.value.in_queue
