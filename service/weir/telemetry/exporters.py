"""Which exporters the settings and the standard OTEL_* variables ask for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SpanExporter

from weir.config import ConfigError, TelemetrySettings
from weir.telemetry.otlp_grpc import GrpcExporter
from weir.telemetry.otlp_json import JsonLinesExporter


@dataclass(frozen=True, slots=True)
class ExporterSpec:
    """An exporter to be made when tracing starts, and how to name it in a log line."""

    name: str
    make: Callable[[], SpanExporter]


def wanted_exporters(settings: TelemetrySettings, env: Mapping[str, str]) -> list[ExporterSpec]:
    """The exporters to use; none when nothing names a place to send to.

    The exporters themselves read headers, certificates, compression and timeouts from the process's OTEL_* variables.
    Raises ConfigError for a variable that names something unknown.
    """
    if env.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return []
    found = []
    if settings.trace_file is not None:
        path, most = Path(settings.trace_file), settings.trace_file_max_bytes
        found.append(ExporterSpec(f"file {path}", lambda: JsonLinesExporter(path, most)))
    listed = [name.strip() for name in env.get("OTEL_TRACES_EXPORTER", "").split(",") if name.strip()]
    for name in listed:
        if name not in ("otlp", "console", "none"):
            raise ConfigError(f"OTEL_TRACES_EXPORTER: {name!r} is not one of otlp, console, none")
    if "console" in listed:
        found.append(ExporterSpec("console", ConsoleSpanExporter))
    if settings.trace_endpoint or "otlp" in listed or (not listed and _endpoint(env)):
        found.append(_otlp(settings, env))
    return found


def _endpoint(env: Mapping[str, str]) -> str | None:
    return env.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or env.get("OTEL_EXPORTER_OTLP_ENDPOINT")


def _otlp(settings: TelemetrySettings, env: Mapping[str, str]) -> ExporterSpec:
    protocol = (
        settings.trace_protocol
        or env.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL")
        or env.get("OTEL_EXPORTER_OTLP_PROTOCOL")
        or "grpc"
    )
    endpoint = settings.trace_endpoint
    name = f"otlp {protocol} {endpoint or _endpoint(env) or 'default endpoint'}"
    if protocol == "grpc":
        return ExporterSpec(name, lambda: GrpcExporter(endpoint=endpoint))
    if protocol == "http/protobuf":
        url = _traces_url(endpoint) if endpoint is not None else None
        return ExporterSpec(name, lambda: HttpExporter(endpoint=url))
    raise ConfigError(f"OTEL_EXPORTER_OTLP_PROTOCOL: {protocol!r} is not one of grpc, http/protobuf")


def _traces_url(endpoint: str) -> str:
    """A base URL gets the signal's path, as OTEL_EXPORTER_OTLP_ENDPOINT does."""
    has_path = urlsplit(endpoint).path not in ("", "/")
    return endpoint if has_path else endpoint.rstrip("/") + "/v1/traces"
