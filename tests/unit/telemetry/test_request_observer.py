"""What a request adds to the metrics, as the server's observer."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

import pytest
from weir.config import EngineSettings, ServerSettings, Settings
from weir.engine.errors import CancelledError, UnavailableError
from weir.server.observer import Observer
from weir.telemetry.request_metrics import RequestMetrics
from weir.telemetry.request_observer import RequestTelemetry
from weir.telemetry.series import Counter
from weir.telemetry.telemetry import Telemetry

from tests.unit.telemetry.factories import (
    GENERATE,
    EngineStub,
    admitted,
    delta,
    done,
    engine_info,
    request,
    step,
)


@pytest.fixture
def telemetry() -> Telemetry:
    return Telemetry(Settings(), "tiny")


@pytest.fixture
def metrics(telemetry: Telemetry) -> RequestMetrics:
    return telemetry.metrics.requests


def start(telemetry: Telemetry) -> RequestTelemetry:
    observer: Observer = telemetry
    started = observer.request_started(GENERATE, {})
    assert isinstance(started, RequestTelemetry)
    return started


def nonzero(counters: dict[str, Counter]) -> dict[str, float]:
    return {name: counter.value for name, counter in counters.items() if counter.value}


def test_a_request_that_runs_to_the_end_is_in_every_latency_once(telemetry: Telemetry, metrics: RequestMetrics) -> None:
    observer = start(telemetry)
    assert metrics.active == 1
    observer.submitted(request())
    observer.event(admitted(prompt_tokens=40, cached_tokens=32))
    observer.event(delta())
    observer.event(delta(tokens=3))
    observer.event(delta(last=True))
    observer.event(done())
    observer.finished("OK", None)
    assert metrics.active == 0
    assert (metrics.prompt_tokens.value, metrics.output_tokens.value) == (40, 5)
    assert (metrics.prefix_query_tokens.value, metrics.prefix_hit_tokens.value) == (40, 32)
    assert (metrics.prompt_length.sum, metrics.output_length.sum) == (40, 5)
    # One gap before the delta of 3 tokens counts for each of them, one before the last token.
    assert sum(metrics.inter_token.counts) == 4
    for histogram in (
        metrics.time_to_first_token,
        metrics.time_per_output_token,
        metrics.duration,
        metrics.queue,
        metrics.prefill,
        metrics.decode,
        metrics.inference,
    ):
        assert sum(histogram.counts) == 1
    assert metrics.inference.sum == pytest.approx(metrics.prefill.sum + metrics.decode.sum)
    assert nonzero(metrics.requests) == {"OK": 1}
    assert nonzero(metrics.finished_choices) == {"length": 1}
    assert metrics.admitted.value == 1
    assert nonzero(metrics.rejected) == {}


def test_tenants_that_are_not_configured_share_one_series() -> None:
    tenants = EngineSettings.model_validate({"tenants": {"search": {"weight": 2.0}}})
    telemetry = Telemetry(Settings(engine=tenants), "tiny")
    for name in ("search", "unheard-of", ""):
        observer = start(telemetry)
        observer.submitted(replace(request(), tenant=name))
        observer.event(admitted(prompt_tokens=40))
        observer.event(delta(tokens=2))
    metrics = telemetry.metrics.requests
    assert nonzero(metrics.tenant_requests) == {"search": 1, "default": 2}
    assert nonzero(metrics.tenant_prompt_tokens) == {"search": 40, "default": 80}
    assert nonzero(metrics.tenant_output_tokens) == {"search": 2, "default": 4}


def test_the_gap_between_tokens_is_measured_within_a_choice(telemetry: Telemetry, metrics: RequestMetrics) -> None:
    observer = start(telemetry)
    observer.submitted(request(n=2))
    observer.event(admitted())
    for choice in (0, 1, 0, 1):
        observer.event(delta(choice=choice))
    observer.finished("OK", None)
    assert sum(metrics.time_to_first_token.counts) == 1
    assert sum(metrics.inter_token.counts) == 2


def test_a_delta_without_tokens_is_no_token(telemetry: Telemetry, metrics: RequestMetrics) -> None:
    observer = start(telemetry)
    observer.event(delta(tokens=0, text="flushed", last=True))
    observer.finished("OK", None)
    assert sum(metrics.time_to_first_token.counts) == 0


def test_a_request_admitted_again_after_preemption_counts_once(telemetry: Telemetry, metrics: RequestMetrics) -> None:
    observer = start(telemetry)
    observer.event(admitted(prompt_tokens=40))
    observer.event(admitted(prompt_tokens=40))
    assert metrics.admitted.value == 1
    assert metrics.prompt_tokens.value == 40


@pytest.mark.parametrize(("events", "state"), [(0, "queued"), (1, "prefill"), (2, "decode")])
def test_a_cancellation_is_counted_in_the_state_it_came_in(
    telemetry: Telemetry, metrics: RequestMetrics, events: int, state: str
) -> None:
    observer = start(telemetry)
    observer.submitted(request())
    for event in (admitted(), delta())[:events]:
        observer.event(event)
    observer.finished("CANCELLED", CancelledError())
    assert nonzero(metrics.cancellations) == {state: 1}
    assert nonzero(metrics.finished_choices) == {"abort": 1}
    assert nonzero(metrics.requests) == {"CANCELLED": 1}
    assert nonzero(metrics.rejected) == ({"cancelled": 1} if state == "queued" else {})


@pytest.mark.parametrize("reason", ["DRAINING", "MODEL_LOADING"])
def test_refusals_of_an_unavailable_server_are_rejections(
    telemetry: Telemetry, metrics: RequestMetrics, reason: str
) -> None:
    start(telemetry).finished("UNAVAILABLE", UnavailableError(reason, 1.0))
    assert nonzero(metrics.rejected) == {reason.lower(): 1}


def test_a_status_that_no_one_knows_makes_no_new_series(telemetry: Telemetry, metrics: RequestMetrics) -> None:
    start(telemetry).finished("TEAPOT", None)
    assert nonzero(metrics.requests) == {"UNKNOWN": 1}


def test_a_request_is_logged_once_at_its_end_and_never_by_the_token(
    telemetry: Telemetry, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, "weir"):
        observer = start(telemetry)
        for _ in range(50):
            observer.event(delta())
        observer.finished("OK", None)
    assert [record.message for record in caplog.records] == ["request finished"]


async def test_telemetry_serves_its_metrics_until_it_is_stopped() -> None:
    telemetry = Telemetry(Settings(server=ServerSettings(metrics_host="127.0.0.1", metrics_port=0)), "tiny")
    port = await telemetry.start()
    telemetry.watch(EngineStub(), engine_info(), [])
    telemetry.step(step())
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /metrics HTTP/1.0\r\n\r\n")
    assert b"\nweir_kv_total_tokens 4096\n" in await reader.read()
    writer.close()
    await telemetry.stop()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)
