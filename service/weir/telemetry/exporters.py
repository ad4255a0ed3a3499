"""Which exporters the settings and the standard OTEL_* variables ask for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import grpc
from opentelemetry.exporter.otlp.proto.http import Compression as HttpCompression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SpanExporter

from weir.config import ConfigError, TelemetrySettings
from weir.telemetry.otel_environment import check_endpoint, export_timeout_s
from weir.telemetry.otlp_grpc import GrpcExporter
from weir.telemetry.otlp_json import JsonLinesExporter, check_appendable

_GRPC_COMPRESSION = {
    "none": grpc.Compression.NoCompression,
    "gzip": grpc.Compression.Gzip,
    "deflate": grpc.Compression.Deflate,
}


@dataclass(frozen=True, slots=True)
class ExporterSpec:
    """An exporter to be made when tracing starts, and how to name it in a log line."""

    name: str
    make: Callable[[], SpanExporter]


def wanted_exporters(settings: TelemetrySettings, env: Mapping[str, str]) -> list[ExporterSpec]:
    """The exporters to use; none when nothing names a place to send to.

    `env` has been through `otel_environment.repair`. The exporters themselves read headers and certificates from the
    process's OTEL_* variables. Raises ConfigError for a trace file or endpoint that cannot be used.
    """
    if env.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return []
    found = []
    if settings.trace_file is not None:
        path, most = Path(settings.trace_file), settings.trace_file_max_bytes
        try:
            check_appendable(path)
        except OSError as error:
            raise ConfigError(f"trace-file: {error}") from None
        found.append(ExporterSpec(f"file {path}", lambda: JsonLinesExporter(path, most)))
    listed = [name.strip() for name in env.get("OTEL_TRACES_EXPORTER", "").split(",") if name.strip()]
    if "console" in listed:
        found.append(ExporterSpec("console", ConsoleSpanExporter))
    if settings.trace_endpoint or "otlp" in listed or (not listed and _of_traces(env, "ENDPOINT")):
        found.append(_otlp(settings, env))
    return found


def _of_traces(env: Mapping[str, str], name: str) -> str | None:
    return env.get(f"OTEL_EXPORTER_OTLP_TRACES_{name}") or env.get(f"OTEL_EXPORTER_OTLP_{name}")


def _otlp(settings: TelemetrySettings, env: Mapping[str, str]) -> ExporterSpec:
    protocol = settings.trace_protocol or _of_traces(env, "PROTOCOL") or "grpc"
    endpoint, timeout_s = settings.trace_endpoint, export_timeout_s(env)
    if endpoint is not None:
        try:
            check_endpoint(endpoint)
        except ValueError as error:
            raise ConfigError(f"trace-endpoint: {endpoint!r} is {error}") from None
    compression = _of_traces(env, "COMPRESSION") or "none"
    name = f"otlp {protocol} {endpoint or _of_traces(env, 'ENDPOINT') or 'default endpoint'}"
    if protocol == "grpc":
        by_name = _GRPC_COMPRESSION[compression]
        return ExporterSpec(name, lambda: GrpcExporter(endpoint=endpoint, timeout=timeout_s, compression=by_name))
    url = _traces_url(endpoint) if endpoint is not None else None
    return ExporterSpec(
        name, lambda: HttpExporter(endpoint=url, timeout=timeout_s, compression=HttpCompression(compression))
    )


def _traces_url(endpoint: str) -> str:
    """A base URL gets the signal's path, as OTEL_EXPORTER_OTLP_ENDPOINT does."""
    has_path = urlsplit(endpoint).path not in ("", "/")
    return endpoint if has_path else endpoint.rstrip("/") + "/v1/traces"
