"""Which exporters settings and OTEL_* variables ask for."""

from __future__ import annotations

import pytest
from weir.config import TelemetrySettings
from weir.telemetry.exporters import wanted_exporters
from weir.telemetry.otel_environment import repair

BASE = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://base:4317"}


def names(env: dict[str, str], **settings: object) -> list[str]:
    return [spec.name for spec in wanted_exporters(TelemetrySettings.model_validate(settings), env)]


@pytest.mark.parametrize(
    ("env", "settings", "expected"),
    [
        ({}, {}, []),
        (BASE, {}, ["otlp grpc http://base:4317"]),
        (
            {**BASE, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://traces:4317"},
            {},
            ["otlp grpc http://traces:4317"],
        ),
        (BASE, {"trace_endpoint": "http://flag:4317"}, ["otlp grpc http://flag:4317"]),
        ({**BASE, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, {}, ["otlp http/protobuf http://base:4317"]),
        (
            {**BASE, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf"},
            {},
            ["otlp http/protobuf http://base:4317"],
        ),
        (
            {**BASE, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"},
            {"trace_protocol": "grpc"},
            ["otlp grpc http://base:4317"],
        ),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, {}, ["otlp grpc default endpoint"]),
        ({**BASE, "OTEL_TRACES_EXPORTER": "none"}, {}, []),
        ({**BASE, "OTEL_TRACES_EXPORTER": "console"}, {}, ["console"]),
        ({**BASE, "OTEL_TRACES_EXPORTER": "console, otlp"}, {}, ["console", "otlp grpc http://base:4317"]),
        ({**BASE, "OTEL_SDK_DISABLED": "true"}, {"trace_file": "t.jsonl"}, []),
        (BASE, {"trace_file": "t.jsonl"}, ["file t.jsonl", "otlp grpc http://base:4317"]),
    ],
)
def test_exporters_follow_settings_then_variables(
    env: dict[str, str], settings: dict[str, object], expected: list[str]
) -> None:
    assert names(env, **settings) == expected


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, []),
        ({**BASE, "OTEL_TRACES_EXPORTER": "zipkin"}, ["otlp grpc http://base:4317"]),
        ({**BASE, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"}, ["otlp http/protobuf http://base:4317"]),
        ({**BASE, "OTEL_EXPORTER_OTLP_PROTOCOL": "carrier pigeon"}, ["otlp grpc http://base:4317"]),
    ],
)
def test_what_is_not_supported_is_said_and_ignored(env: dict[str, str], expected: list[str]) -> None:
    name = next(reversed(env))
    assert [note.partition(":")[0] for note in repair(env)] == [name]
    assert names(env) == expected


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        ("http://c:4318", "http://c:4318/v1/traces"),
        ("http://c:4318/", "http://c:4318/v1/traces"),
        ("https://c/custom/path", "https://c/custom/path"),
    ],
)
def test_a_base_url_gets_the_path_of_traces_over_http(endpoint: str, url: str) -> None:
    settings = TelemetrySettings(trace_endpoint=endpoint, trace_protocol="http/protobuf")
    [spec] = wanted_exporters(settings, {})
    exporter = spec.make()
    assert exporter._endpoint == url  # type: ignore[attr-defined]
    exporter.shutdown()
