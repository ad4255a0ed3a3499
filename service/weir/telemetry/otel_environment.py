"""The OTEL_* variables as the specification wants them read: empty is unset, and what cannot be used is ignored.

The SDK raises for some wrong values when it is imported and for others when it starts. Telemetry must never stop
serving, so what it cannot use is taken out of the environment before it is imported; nothing here imports it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, MutableMapping
from importlib.metadata import entry_points
from pathlib import Path
from urllib.parse import unquote, urlsplit

# What is read of a variable: the value to use. Raises ValueError that says what is allowed.
Rule = Callable[[str], str]

DEFAULT_EXPORT_TIMEOUT_S = 10.0
LONGEST_EXPORT_TIMEOUT_S = 3600.0
# The specification counts in milliseconds and the Python SDK in seconds; nobody waits so many seconds for an export.
_SHORTEST_MS = 1000.0
# Beyond it, containers and waits of the standard library overflow.
_MOST = 2**31 - 1
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HOST_AND_PORT = re.compile(r"[\w.\-\[\]:]+:\d{1,5}|unix:\S+", re.ASCII)
_GRPC_CODES = (
    *("CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS"),
    *("PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED"),
    *("INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED"),
)


def repair(env: MutableMapping[str, str]) -> list[str]:
    """Take out of `env` what cannot be used; a line for each variable that is not used as it was given."""
    notes = []
    for name, rule in RULES.items():
        # Out of the environment while it is read: an installed part that is looked at may read it too.
        given = env.pop(name, "").strip()
        if not given:
            continue
        shown = "its value" if name.endswith("_HEADERS") else repr(given)  # headers hold secrets
        try:
            given.encode()
            used = rule(given)
        except UnicodeEncodeError:
            notes.append(f"{name}: {shown} is ignored: it is not UTF-8")
        except ValueError as error:
            notes.append(f"{name}: {shown} is ignored: {error}")
        else:
            env[name] = used
            if used.casefold() != given.casefold():
                notes.append(f"{name}: {shown} is read as {'less' if name.endswith('_HEADERS') else repr(used)}")
    return notes


def export_timeout_s(env: Mapping[str, str]) -> float:
    """Seconds that an export may take."""
    text = env.get("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT") or env.get("OTEL_EXPORTER_OTLP_TIMEOUT")
    return float(text) if text else DEFAULT_EXPORT_TIMEOUT_S


def check_endpoint(text: str) -> str:
    """Return `text` if it is a URL, or HOST:PORT, that an exporter can be made for. Raises ValueError."""
    try:
        url = urlsplit(text)
        usable = bool(url.scheme in ("http", "https") and url.hostname and (url.port is None or url.port > 0))
    except ValueError:
        usable = False
    if not (usable or _HOST_AND_PORT.fullmatch(text)) or not text.isprintable() or " " in text:
        raise ValueError("not an endpoint, as in http://collector:4317")
    return text


def _whole(least: int) -> Rule:
    def rule(text: str) -> str:
        if not (text.isascii() and text.isdigit() and len(text) < 12 and least <= int(text) <= _MOST):
            raise ValueError(f"not a whole number from {least} to {_MOST}")
        return text

    return rule


def _share(text: str) -> str:
    if not 0 <= _number(text) <= 1:
        raise ValueError("not a number from 0 to 1")
    return text


def _timeout(text: str) -> str:
    value = _number(text)
    seconds = value if value < _SHORTEST_MS else value / 1000
    if not 0 < seconds <= LONGEST_EXPORT_TIMEOUT_S:
        raise ValueError(f"not a number of seconds above 0 and up to {LONGEST_EXPORT_TIMEOUT_S:.0f}")
    return text if seconds == value else f"{seconds:g}"


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _one_of(*allowed: str) -> Rule:
    def rule(text: str) -> str:
        if text.lower() not in allowed:
            raise ValueError(f"not one of {', '.join(allowed)}")
        return text.lower()

    return rule


def _protocol(text: str) -> str:
    # The JSON form is not spoken here, and whoever takes it takes this one too.
    return "http/protobuf" if text == "http/json" else _one_of("grpc", "http/protobuf")(text)


def _list_of(allowed: tuple[str, ...]) -> Rule:
    return lambda text: _kept(text, lambda item: item in allowed, f"none of {', '.join(allowed)}")


def _codes(text: str) -> str:
    return _kept(text, lambda item: item.upper() in _GRPC_CODES, "no status codes of gRPC")


def _headers(text: str) -> str:
    def usable(item: str) -> bool:
        name, separator, value = item.partition("=")
        decoded = unquote(value.strip())
        return bool(separator and _HEADER_NAME.fullmatch(name.strip()) and decoded.isascii() and decoded.isprintable())

    return _kept(text, usable, "no header, as in KEY=VALUE,KEY=VALUE")


def _attributes(text: str) -> str:
    def usable(item: str) -> bool:
        key, separator, value = item.partition("=")
        return bool(separator and key.strip() and (value.strip() or key.strip() != "service.name"))

    return _kept(text, usable, "no attribute, as in key=value,key=value")


def _kept(text: str, usable: Callable[[str], bool], otherwise: str) -> str:
    """The usable items of a list."""
    items = [item.strip() for item in text.split(",")]
    kept = [item for item in items if usable(item)]
    if not kept:
        raise ValueError(otherwise)
    return text if len(kept) == len(items) else ",".join(kept)


def _file(text: str) -> str:
    try:
        with Path(text).open("rb") as file:
            file.read(1)
    except (OSError, ValueError) as error:
        raise ValueError(f"cannot be read: {error}") from None
    return text


def _installed(group: str, *besides: str) -> Rule:
    def usable(name: str) -> bool:
        if name in besides:
            return True
        try:
            return any(found.load() is not None for found in entry_points(group=group, name=name))
        except Exception:  # whatever an installed part does when it is imported
            return False

    names = group.removeprefix("opentelemetry_").replace("_", " ")
    return lambda text: _kept(text, usable, f"no {names} of that name is installed")


def _any(text: str) -> str:
    return text


_SIGNAL_RULES: dict[str, Rule] = {
    "ENDPOINT": check_endpoint,
    "PROTOCOL": _protocol,
    "HEADERS": _headers,
    "TIMEOUT": _timeout,
    "COMPRESSION": _one_of("gzip", "deflate", "none"),
    "INSECURE": _one_of("true", "false"),
    "CERTIFICATE": _file,
    "CLIENT_KEY": _file,
    "CLIENT_CERTIFICATE": _file,
}
_CREDENTIALS = _installed("opentelemetry_otlp_credential_provider")

RULES: dict[str, Rule] = {
    # First, as what is looked at below may be imported.
    "OTEL_PYTHON_CONTEXT": _installed("opentelemetry_context"),
    "OTEL_PYTHON_TRACER_PROVIDER": _installed("opentelemetry_tracer_provider"),
    "OTEL_PYTHON_METER_PROVIDER": _installed("opentelemetry_meter_provider"),
    "OTEL_METRICS_EXEMPLAR_FILTER": _one_of("always_on", "always_off", "trace_based"),
    "OTEL_PYTHON_SDK_INTERNAL_METRICS_ENABLED": _one_of("true", "false"),
    "OTEL_SDK_DISABLED": _one_of("true", "false"),
    "OTEL_SERVICE_NAME": _any,
    "OTEL_RESOURCE_ATTRIBUTES": _attributes,
    "OTEL_TRACES_SAMPLER": _one_of(
        *("always_on", "always_off", "traceidratio"),
        *("parentbased_always_on", "parentbased_always_off", "parentbased_traceidratio"),
    ),
    "OTEL_TRACES_SAMPLER_ARG": _share,
    "OTEL_TRACES_EXPORTER": _list_of(("otlp", "console", "none")),
    **dict.fromkeys(
        (
            *("OTEL_ATTRIBUTE_COUNT_LIMIT", "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT"),
            *("OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT", "OTEL_SPAN_EVENT_COUNT_LIMIT", "OTEL_SPAN_LINK_COUNT_LIMIT"),
            *("OTEL_EVENT_ATTRIBUTE_COUNT_LIMIT", "OTEL_LINK_ATTRIBUTE_COUNT_LIMIT"),
        ),
        _whole(0),
    ),
    **dict.fromkeys(
        ("OTEL_BSP_MAX_QUEUE_SIZE", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "OTEL_BSP_SCHEDULE_DELAY"), _whole(1)
    ),
    **{
        f"OTEL_EXPORTER_OTLP_{signal}{name}": rule for name, rule in _SIGNAL_RULES.items() for signal in ("", "TRACES_")
    },
    "OTEL_PYTHON_EXPORTER_OTLP_GRPC_RETRYABLE_ERROR_CODES": _codes,
    **{
        f"OTEL_PYTHON_EXPORTER_OTLP_{transport}_{signal}CREDENTIAL_PROVIDER": _CREDENTIALS
        for transport in ("GRPC", "HTTP")
        for signal in ("", "TRACES_")
    },
    "OTEL_EXPERIMENTAL_RESOURCE_DETECTORS": _installed("opentelemetry_resource_detector", "*"),
    "OTEL_PROPAGATORS": _installed("opentelemetry_propagator", "none"),
}
