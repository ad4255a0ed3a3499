"""What is wrong with an OTEL_* variable is said, ignored, and never a reason not to serve."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry import environment_variables as api_variables
from opentelemetry.sdk import environment_variables as sdk_variables
from weir.config import ConfigError, Settings, TelemetrySettings
from weir.telemetry.otel_environment import RULES, repair
from weir.telemetry.telemetry import Telemetry

from tests.contract.server_process import ServerProcess
from tests.unit.telemetry.factories import GENERATE, attributes, grpc_receiver, http_receiver, request, step

# Every variable that the API and the SDK know, whether or not something here reads it.
KNOWN = sorted(
    value
    for module in (api_variables, sdk_variables)
    for name, value in vars(module).items()
    if name.lstrip("_").startswith("OTEL_") and isinstance(value, str)
)
JUNK = ["not-there", "10s", "-1", "1e999", "9" * 40, "a,,=b", "http://[", "ü\x01", "\udcff", "/no/such/file", "none"]
TAKE_ANY_TEXT = {"OTEL_SERVICE_NAME"}
# The RPC, its wait in the queue, and the step.
SPANS = 3


@pytest.fixture(autouse=True)
def environment() -> Iterator[None]:
    """Nothing of OpenTelemetry is set, and what a test sets is gone after it."""
    before = dict(os.environ)
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        del os.environ[name]
    yield
    os.environ.clear()
    os.environ.update(before)


def one_request(endpoint: str, protocol: str) -> Telemetry:
    """A telemetry from start to end with a request and a step in it, as `weir serve` makes it."""
    repair(os.environ)
    chosen = TelemetrySettings.model_validate({"trace_endpoint": endpoint, "trace_protocol": protocol})
    telemetry = Telemetry(Settings(telemetry=chosen), "tiny")
    telemetry.tracing.start()
    observer = telemetry.request_started(GENERATE, {})
    observer.submitted(request("r1"))
    observer.queued("r1")
    telemetry.step(step(1))
    observer.finished("OK", None)
    telemetry.tracing.shutdown()
    return telemetry


def test_a_rule_stands_for_each_variable_that_is_read() -> None:
    assert set(RULES) - set(KNOWN) == set()
    unread = {name for name in KNOWN if name not in RULES}
    assert not {name for name in unread if "TRACES" in name or "SPAN" in name or "PROPAGATORS" in name}


@pytest.mark.parametrize("name", KNOWN)
def test_whatever_a_variable_holds_requests_are_served_and_traced(name: str) -> None:
    with grpc_receiver() as (over_grpc, _), http_receiver() as (over_http, _):
        collectors = [(over_grpc, "grpc"), (over_http, "http/protobuf")][: 2 if "OTLP" in name else 1]
        for value in JUNK if name in RULES else JUNK[:2]:
            for endpoint, protocol in collectors:
                os.environ[name] = value
                assert one_request(endpoint, protocol).metrics.traces.exported.value == SPANS, (value, protocol)


@pytest.mark.parametrize("name", sorted(set(RULES) - TAKE_ANY_TEXT))
def test_what_cannot_be_used_is_named_with_what_is_allowed(name: str) -> None:
    env = {name: "junk; \x01"}
    [note] = repair(env)
    assert env == {}
    assert note.startswith(f"{name}: ")
    assert "junk" not in note or not name.endswith("HEADERS")


@pytest.mark.parametrize("name", sorted(RULES))
@pytest.mark.parametrize("empty", ["", "  "])
def test_empty_is_unset(name: str, empty: str) -> None:
    env = {name: empty}
    assert repair(env) == []
    assert env == {}


@pytest.mark.parametrize(
    ("name", "given", "used"),
    [
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "2.5", "2.5"),
        ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "10000", "10"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "none", "none"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "GZIP", "gzip"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json", "http/protobuf"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "https://collector.example:4317/path", "https://collector.example:4317/path"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4317", "collector:4317"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "a=1,b,c=%20x", "a=1,c=%20x"),
        ("OTEL_RESOURCE_ATTRIBUTES", "service.name=,team=a,x", "team=a"),
        ("OTEL_PROPAGATORS", "tracecontext,b3,baggage", "tracecontext,baggage"),
        ("OTEL_PROPAGATORS", "none", "none"),
        ("OTEL_TRACES_EXPORTER", "otlp,zipkin", "otlp"),
        ("OTEL_TRACES_SAMPLER", "ParentBased_Always_Off", "parentbased_always_off"),
        ("OTEL_TRACES_SAMPLER_ARG", "0.25", "0.25"),
        ("OTEL_EXPERIMENTAL_RESOURCE_DETECTORS", "process,gone", "process"),
        ("OTEL_PYTHON_CONTEXT", "contextvars_context", "contextvars_context"),
        ("OTEL_SPAN_LINK_COUNT_LIMIT", "0", "0"),
    ],
)
def test_what_can_be_used_is_kept(name: str, given: str, used: str) -> None:
    env = {name: given}
    notes = repair(env)
    assert env == {name: used}
    assert len(notes) == (given.casefold() != used.casefold())


@pytest.mark.parametrize("compression", ["none", "gzip", "deflate", "zstd"])
@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_each_compression_is_spoken_or_left_out(compression: str, protocol: str) -> None:
    os.environ["OTEL_EXPORTER_OTLP_TRACES_COMPRESSION"] = compression
    os.environ["OTEL_EXPORTER_OTLP_COMPRESSION"] = "gzip"
    with grpc_receiver() if protocol == "grpc" else http_receiver() as (endpoint, _):
        telemetry = one_request(endpoint, protocol)
    # The collector of these tests reads what gRPC compresses, and no compressed body over HTTP.
    if protocol == "grpc" or compression == "none":
        assert telemetry.metrics.traces.exported.value == SPANS


@pytest.mark.parametrize(
    ("env", "service"),
    [
        ({"OTEL_SERVICE_NAME": ""}, "weir"),
        ({"OTEL_SERVICE_NAME": "chat"}, "chat"),
        ({"OTEL_SERVICE_NAME": "", "OTEL_RESOURCE_ATTRIBUTES": "service.name=chat"}, "chat"),
        ({"OTEL_RESOURCE_ATTRIBUTES": "service.name="}, "weir"),
    ],
)
def test_a_service_always_has_a_name(env: dict[str, str], service: str) -> None:
    os.environ.update(env)
    with grpc_receiver() as (endpoint, received):
        one_request(endpoint, "grpc")
    for spans in received.requests[0].resource_spans:
        assert attributes(spans.resource.attributes)["service.name"] == service


def test_an_exporter_that_cannot_be_made_is_left_out_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(**_: object) -> None:
        raise RuntimeError("no such provider")

    monkeypatch.setattr("weir.telemetry.exporters.GrpcExporter", broken)
    with caplog.at_level(logging.WARNING):
        telemetry = one_request("http://127.0.0.1:1", "grpc")
    assert "no traces go to otlp grpc http://127.0.0.1:1: RuntimeError: no such provider" in caplog.text
    assert telemetry.metrics.traces.exported.value == 0


@pytest.mark.parametrize("endpoint", ["http://[", "ftp://collector", "a b", "http://", "http://h:99999"])
def test_a_wrong_endpoint_in_a_setting_stops_the_start(endpoint: str) -> None:
    with pytest.raises(ConfigError, match="trace-endpoint"):
        Telemetry(Settings(telemetry=TelemetrySettings(trace_endpoint=endpoint)), "tiny")


@pytest.mark.slow
@pytest.mark.parametrize(
    "env",
    [
        dict.fromkeys(KNOWN, "junk"),
        dict.fromkeys(KNOWN, ""),
        {
            "OTEL_PROPAGATORS": "b3",
            "OTEL_EXPORTER_OTLP_COMPRESSION": "zstd",
            "OTEL_EXPORTER_OTLP_TIMEOUT": "10s",
            "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1",
        },
    ],
    ids=["all junk", "all empty", "those that were fatal"],
)
def test_the_server_serves_and_says_what_it_ignores(tmp_path: Path, env: dict[str, str]) -> None:
    with ServerProcess(tmp_path, env=env) as server, server.ready() as client:
        assert len(client.complete(token_ids=[1, 2], max_tokens=3, ignore_eos=True).token_ids) == 3
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(timeout=60) == 0
    log = server.log_file.read_text()
    assert "Traceback" not in log
    for name, value in env.items():
        wrong = name in RULES and name not in TAKE_ANY_TEXT and value not in ("", "http://127.0.0.1:1")
        assert (f"{name}: " in log) == wrong


async def test_a_pipe_that_nobody_reads_is_refused_and_does_not_hold_up_the_start(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    settings = Settings(telemetry=TelemetrySettings(trace_file=str(tmp_path / "pipe")))
    async with asyncio.timeout(5):
        with pytest.raises(ConfigError, match=r"trace-file: .*nobody reads this pipe"):
            await asyncio.to_thread(Telemetry, settings, "tiny")


@pytest.mark.parametrize("place", ["nowhere/spans.jsonl", "."])
def test_a_trace_file_that_cannot_be_written_stops_the_start(tmp_path: Path, place: str) -> None:
    with pytest.raises(ConfigError, match="trace-file"):
        Telemetry(Settings(telemetry=TelemetrySettings(trace_file=str(tmp_path / place))), "tiny")
