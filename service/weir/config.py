"""One frozen settings tree. Sources, strongest first: flags, WEIR_* environment, a YAML file, defaults.

A field's public name is its name without the unit suffix: `drain_timeout_s` is `--drain-timeout`,
`WEIR_DRAIN_TIMEOUT` and, in the YAML file, `server: {drain_timeout: 30}`. A name that is no setting is an error in
every source: a misspelt one would otherwise do nothing, in silence.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

# What C code further down counts in.
_MOST = 2**31 - 1

# Variables of this name that are no settings of the server.
_OTHER_VARIABLES = ("WEIR_CONFIG", "WEIR_TARGET", "WEIR_CACHE_DIR")
_OTHER_PREFIXES = ("WEIR_SIDECAR_", "WEIR_TEST_")
# What Kubernetes sets in each pod for a Service called weir, weir-metrics, ...: addresses, no settings.
_SERVICE_LINK = re.compile(r"(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)")
_SERVICE_LINK_PORT = re.compile(r"(\w+_)?PORT=(tcp|udp|sctp)://\S+")

_MOST_BYTES = 2**60
_LEAST_MEMORY_BYTES = 2**20
_SIZE_UNITS = {
    "": 1,
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "t": 10**12,
    "ki": 2**10,
    "mi": 2**20,
    "gi": 2**30,
    "ti": 2**40,
}


class ConfigError(ValueError):
    """The settings are wrong; the message names the setting, its value and what is allowed."""


def parse_size(value: object) -> object:
    """Turn "2GiB", "512Mi", "1.5G" or a number into bytes. Raises ValueError for anything else that is a string."""
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kmgt]?i?)b?\s*", value.lower())
    if match is None or match[2] not in _SIZE_UNITS:
        raise ValueError(f"not a size: {value!r}; write a number of bytes or use a unit, as in 512MiB or 2GiB")
    number = float(match[1]) * _SIZE_UNITS[match[2]]
    if number > _MOST_BYTES:
        raise ValueError(f"more than any memory: {value!r}")
    return int(number)


def parse_memory(value: object) -> object:
    """A size, of something that is counted in gigabytes: text without a unit is a mistake there. Raises ValueError."""
    size = parse_size(value)
    if isinstance(value, str) and value.strip().isdigit() and isinstance(size, int) and size < _LEAST_MEMORY_BYTES:
        raise ValueError(f"{value!r} is {size} bytes; use a unit, as in {value.strip()}GiB")
    return size


def format_size(size: int) -> str:
    """Bytes for people: "24 GiB", "2.56 GiB", "800 B"."""
    value, unit = float(size), "B"
    for bigger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, bigger
    return f"{value:,.0f} {unit}" if value == int(value) else f"{value:,.2f} {unit}"


def parse_duration(value: object) -> object:
    """Turn "30s", "500ms", "2m", "1h" or a number into seconds. Raises ValueError for any other string."""
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(ms|s|m|h)?\s*", value.lower())
    if match is None:
        raise ValueError(f"not a duration: {value!r}; write seconds or use a unit, as in 500ms, 30s or 2m")
    return float(match[1]) * {"ms": 0.001, None: 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}[match[2]]


def parse_json(value: object) -> object:
    """Read a structured setting that came as text, from a flag or the environment. Raises ValueError."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from None


Memory = Annotated[int, BeforeValidator(parse_memory), Field(gt=0, le=_MOST_BYTES)]
Bytes = Annotated[int, BeforeValidator(parse_size), Field(gt=0, le=_MOST_BYTES)]
# gRPC counts milliseconds in 31 bits.
Seconds = Annotated[float, BeforeValidator(parse_duration), Field(ge=0, le=2_000_000)]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)

    @field_validator("*")
    @classmethod
    def _fits_what_it_is_passed_to(cls, value: object, info: ValidationInfo) -> object:
        if isinstance(value, int) and value > _MOST and not (info.field_name or "").endswith("_bytes"):
            raise ValueError(f"must be at most {_MOST}")
        if isinstance(value, str) and (not value or "\0" in value):
            raise ValueError("must not be empty" if not value else "must not hold a NUL")
        return value


class ModelSettings(_Section):
    """Which model, and in which numbers."""

    model: str = Field(
        "models/smollm2-135m-instruct", description="folder with config.json, safetensors and tokenizer.json"
    )
    served_model_name: str | None = Field(None, description="name that clients use; default: the folder's name")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field("auto", description="auto: what the config names")
    load_format: Literal["auto", "dummy"] = Field("auto", description="dummy: random weights of the config's shapes")
    max_model_len: int | None = Field(None, gt=0, description="longest prompt + output; default: the model's own limit")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto: a GPU when there is one")
    kernels: Literal["auto", "triton", "cpu", "reference"] = Field("auto", description="kernel backend")


class TenantSettings(_Section):
    """What one tenant may have."""

    weight: float = Field(1.0, gt=0, description="share of the service when tenants compete")
    kv_share: float = Field(1.0, gt=0, le=1, description="largest share of the KV pool")
    queue_share: float = Field(1.0, gt=0, le=1, description="largest share of the queue, in requests and in tokens")


class EngineSettings(_Section):
    """The KV pool, the batch and the queue."""

    kv_memory_bytes: Memory | None = Field(None, description="memory of the KV pool, as in 2GiB")
    kv_memory_fraction: float = Field(
        0.25, gt=0, le=1, description="without kv-memory: this share of the free memory, on a GPU of what steps leave"
    )
    kv_cache_dtype: Literal["auto", "fp8_e4m3"] = Field(
        "auto", description="number type of the KV cache; auto: the model's; fp8_e4m3: half of bfloat16's memory"
    )
    block_size: int | None = Field(
        None,
        gt=0,
        le=65536,
        multiple_of=16,
        description="tokens in a KV block, a multiple of 16; default: 32 on the CPU, 16 on a GPU",
    )
    max_running: int = Field(64, gt=0, description="choices computed at once")
    max_batch_tokens: int = Field(512, gt=0, description="tokens computed in one step, decodes first")
    cuda_graphs: bool = Field(True, description="record decode steps on a GPU and replay them; off: launch each kernel")
    prefix_cache: bool = Field(True, description="reuse the KV blocks of equal prompt prefixes")
    prefix_cache_sharing: Literal["tenant", "all"] = Field(
        "tenant", description="tenant: each tenant finds its own prefixes; all: everybody finds everybody's"
    )
    admission: Literal["guaranteed", "optimistic", "reserve"] = Field(
        "guaranteed",
        description="guaranteed: future peak fits; optimistic: overcommit and preempt; reserve: sum of maxima",
    )
    overcommit: float = Field(0.5, gt=0, le=1, description="optimistic: share of the remaining decode that is reserved")
    preempt_lower_priority: bool = Field(False, description="a waiting request may evict strictly lower priorities")
    bypass_limit: int = Field(
        64, ge=0, description="later requests that may pass a waiting one before the pool drains for it"
    )
    bypass_age_s: Seconds = Field(10.0, description="age from which a waiting request may not be passed at all")
    bypass_scan: int = Field(16, gt=0, description="waiting requests that are tried in one step when none fits")
    max_queue_requests: int = Field(1024, gt=0, description="requests that may wait")
    max_queue_tokens: int = Field(1_000_000, gt=0, description="prompt + output tokens that may wait")
    tenants: Annotated[dict[str, TenantSettings], BeforeValidator(parse_json)] = Field(
        {}, description='shares by x-tenant-id, as in {"gold": {"weight": 3, "kv_share": 0.5}}; others share "default"'
    )
    default_max_tokens: int = Field(512, gt=0, description="max_tokens of a request that names none")
    max_choices: int = Field(16, gt=0, description="largest n")
    max_logprobs: int = Field(20, ge=0, description="largest number of alternatives for logprobs and prompt_logprobs")
    max_stop_strings: int = Field(16, ge=0, description="stop strings in one request")
    max_stop_string_chars: int = Field(256, gt=0, le=4096, description="characters in one stop string")
    max_logit_bias: int = Field(1024, ge=0, description="entries in one logit_bias")
    threads: int | None = Field(None, gt=0, le=4096, description="compute threads; default: the cgroup's CPU limit")
    stall_timeout_s: Seconds = Field(60.0, description="a step older than this makes liveness fail")

    @model_validator(mode="after")
    def _prefill_can_progress(self) -> EngineSettings:
        if self.max_batch_tokens <= self.max_running:
            raise ValueError(
                f"max-batch-tokens ({self.max_batch_tokens}) must be larger than max-running ({self.max_running}): "
                "decodes come first, and prefill needs what is left"
            )
        return self


class ServerSettings(_Section):
    """Ports, limits and the end of life."""

    host: str = Field("::", description="address of the gRPC port; :: is every one, of IPv4 too")
    port: int = Field(50051, ge=0, le=65535, description="gRPC port; 0 picks a free one")
    admin_address: str = Field("127.0.0.1:50052", description="loopback HOST:PORT or unix:/path of the admin service")
    metrics_host: str = Field("::", description="address of the metrics port; :: is every one, of IPv4 too")
    metrics_port: int = Field(9090, ge=0, le=65535, description="Prometheus HTTP port; 0 picks a free one")
    drain_timeout_s: Seconds = Field(30.0, description="how long running requests may go on after SIGTERM")
    max_message_bytes: Bytes = Field(
        4 * 2**20, ge=64 * 2**10, le=_MOST, description="largest gRPC message, both directions"
    )
    max_concurrent_streams: int = Field(4096, gt=0, description="calls at once on one connection; further ones wait")
    max_connection_age_s: Seconds | None = Field(
        None,
        gt=0,
        description="close connections at this age, so that clients find new replicas; running streams finish",
    )
    max_prompt_bytes: Bytes | None = Field(
        None, description="largest text or conversation; default: 16 bytes for each token of the model length"
    )
    tokenizer_processes: int = Field(
        2, gt=0, description="processes that tokenise prompts; every second one takes the long ones"
    )
    tokenizer_timeout_s: Seconds = Field(
        10.0, gt=0, description="a prompt that takes longer to tokenise, in computing time, is refused"
    )
    tokenizer_memory_bytes: Bytes = Field(
        512 * 2**20, description="most memory that tokenising one prompt may take, beyond the tokenizer's own"
    )
    tls_cert_file: str | None = Field(None, description="PEM certificate chain; with it, gRPC is served over TLS only")
    tls_key_file: str | None = Field(None, description="PEM key of the certificate")
    tls_client_ca_file: str | None = Field(None, description="PEM CA; with it, clients must bring a certificate of it")
    auth_tokens_file: str | None = Field(
        None, description="file of bearer tokens, TOKEN or tenant=NAME TOKEN a line; health needs none"
    )
    auth_tokens_grace_s: Seconds = Field(
        60.0, description="how long tokens stay good when their file is emptied, removed or unreadable"
    )
    health_port: int | None = Field(
        None, ge=0, le=65535, description="further port, in plain text, that serves health only (for probes under TLS)"
    )

    max_stream_buffer_bytes: Bytes = Field(
        8 * 2**20, description="output that may wait for the reader of one stream; beyond it the stream is cut"
    )
    max_buffer_bytes: Bytes = Field(
        256 * 2**20, description="output that may wait for all readers; beyond it streams that stand still are cut"
    )
    unread_timeout_s: Seconds = Field(60.0, gt=0, description="a stream whose client reads nothing for so long is cut")
    receive_timeout_s: Seconds = Field(30.0, gt=0, description="time for a request message to come in whole")
    max_connections: int = Field(2048, gt=0, description="connections to a gRPC port at once; further ones are closed")
    max_connection_idle_s: Seconds = Field(600.0, gt=0, description="connections without a call are closed after this")
    max_watches: int = Field(1024, gt=0, description="open WatchBudget and load report streams")

    @model_validator(mode="after")
    def _tls_is_whole(self) -> ServerSettings:
        if (self.tls_cert_file is None) != (self.tls_key_file is None):
            raise ValueError("tls-cert-file and tls-key-file go together: give both or none")
        if self.tls_client_ca_file is not None and self.tls_cert_file is None:
            raise ValueError("tls-client-ca-file needs tls-cert-file and tls-key-file")
        return self


class TelemetrySettings(_Section):
    """Logs, traces and metrics. Standard OTEL_* variables apply where no setting here is given."""

    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="least severe line to log")
    log_format: Literal["json", "text"] = Field("text", description="json for log collectors")
    trace_endpoint: str | None = Field(
        None, description="OTLP endpoint, as in http://collector:4317; default: what OTEL_EXPORTER_OTLP_* say"
    )
    trace_protocol: Literal["grpc", "http/protobuf"] | None = Field(
        None, description="OTLP transport; default: OTEL_EXPORTER_OTLP_PROTOCOL, else grpc"
    )
    trace_file: str | None = Field(None, description="append spans to this file, one OTLP JSON object a line")
    trace_file_max_bytes: Bytes = Field(
        2**30, description="a trace file that would grow beyond this is renamed to FILE.1, in place of the last one"
    )
    trace_steps: Literal["always", "ratio", "slow-only", "never"] = Field(
        "always", description="which scheduling steps become spans"
    )
    trace_step_ratio: float = Field(0.1, ge=0, le=1, description="trace-steps=ratio: this share of the steps")
    trace_slow_step_s: Seconds = Field(0.5, description="trace-steps=slow-only: steps at least this long")
    trace_phases: bool = Field(False, description="a child span for each phase of a step")
    trace_content: bool = Field(False, description="put prompt and output text on request spans")
    vllm_metrics: bool = Field(True, description="also export the metric names of vLLM")


class Settings(_Section):
    """All settings of `weir serve`."""

    model: ModelSettings = ModelSettings()
    engine: EngineSettings = EngineSettings()
    server: ServerSettings = ServerSettings()
    telemetry: TelemetrySettings = TelemetrySettings()


def public_name(field: str) -> str:
    """`drain_timeout_s` -> `drain_timeout`; the unit of a value that is given with a unit is not part of its name."""
    return field.removesuffix("_s").removesuffix("_bytes")


def _fields(sections: Sequence[str]) -> list[tuple[str, str, Any]]:
    return [
        (section, name, info)
        for section in sections
        for name, info in type(getattr(Settings(), section)).model_fields.items()
    ]


def _scalar_type(annotation: object) -> object:
    options = [a for a in get_args(annotation) if a is not NoneType]
    return options[0] if get_origin(annotation) in (Union, UnionType) and len(options) == 1 else annotation


def add_flags(parser: argparse.ArgumentParser, *sections: str) -> None:
    """Add a flag for every field of the named sections (`model`, `engine`, `server`, `telemetry`), and --config."""
    parser.add_argument("--config", metavar="FILE", help="YAML file of settings")
    groups = {section: parser.add_argument_group(section) for section in sections}
    for section, name, info in _fields(sections):
        flag, dest = "--" + public_name(name).replace("_", "-"), f"{section}.{name}"
        default = "" if info.default is None else f" (default: {info.default})"
        annotation = _scalar_type(info.annotation)
        help_text = f"{info.description}{default}".replace("%", "%%")
        if annotation is bool:
            groups[section].add_argument(
                flag, dest=dest, action=argparse.BooleanOptionalAction, default=None, help=help_text
            )
        else:
            choices = f"{{{','.join(map(str, get_args(annotation)))}}}" if get_origin(annotation) is Literal else None
            groups[section].add_argument(
                flag,
                dest=dest,
                default=None,
                metavar=choices or public_name(name).split("_")[-1].upper(),
                help=help_text,
            )


def load(
    flags: argparse.Namespace | None = None,
    env: Mapping[str, str] | None = None,
    file: str | Path | None = None,
) -> Settings:
    """Merge flags > env > file > defaults and validate. Raises ConfigError with every setting that is wrong."""
    env = os.environ if env is None else env
    given = vars(flags) if flags is not None else {}
    file = file or given.get("config") or env.get("WEIR_CONFIG")
    values: dict[str, dict[str, Any]] = {section: {} for section in Settings.model_fields}
    origin: dict[tuple[str, str], str] = {}
    if file:
        for section, name, value in _from_file(Path(file)):
            values[section][name], origin[section, name] = value, f"{file}: {section}.{public_name(name)}"
    env = {name: value for name, value in env.items() if not is_service_link(name, value)}
    _refuse_unknown(env)
    for section, name, _ in _fields(list(Settings.model_fields)):
        variable = _variable(name)
        if variable in env:
            values[section][name], origin[section, name] = env[variable], variable
        if (flag_value := given.get(f"{section}.{name}")) is not None:
            values[section][name] = flag_value
            origin[section, name] = "--" + public_name(name).replace("_", "-")
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        raise ConfigError("\n".join(_explain(item, origin) for item in error.errors())) from None


def is_service_link(name: str, value: str) -> bool:
    """Whether this is one of the variables that Kubernetes makes for a Service whose name begins with `weir`."""
    link = name.removeprefix("WEIR_")
    return link != name and bool(_SERVICE_LINK.fullmatch(link) or _SERVICE_LINK_PORT.fullmatch(f"{link}={value}"))


def _variable(field: str) -> str:
    return "WEIR_" + public_name(field).upper()


def _refuse_unknown(env: Mapping[str, str]) -> None:
    known = {_variable(name) for _, name, _ in _fields(list(Settings.model_fields))} | set(_OTHER_VARIABLES)
    refuse_unknown([n for n in env if n.startswith("WEIR_") and not n.startswith(_OTHER_PREFIXES)], known)


def refuse_unknown(names: Iterable[str], known: Collection[str]) -> None:
    """Raise a ConfigError that names those that are no settings, each with the nearest that is one."""
    if unknown := [name for name in names if name not in known]:
        raise ConfigError("\n".join(f"{name}: no such setting{_hint(name, known)}" for name in unknown))


def _hint(name: str, known: Iterable[str]) -> str:
    nearest = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {nearest[0]}?" if nearest else ""


def _from_file(path: Path) -> list[tuple[str, str, Any]]:
    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        reason = error.strerror if isinstance(error, OSError) else " ".join(str(error).split())
        raise ConfigError(f"cannot read the settings file {path}: {reason}") from None
    known = {(section, public_name(name)): name for section, name, _ in _fields(list(Settings.model_fields))}
    if not isinstance(tree, dict) or not all(isinstance(body, dict) for body in tree.values()):
        raise ConfigError(f"{path}: expected sections {', '.join(Settings.model_fields)}, each a mapping")
    found = []
    for section, body in tree.items():
        for name, value in body.items():
            if (section, name) not in known:
                names = (f"{section}.{name}" for section, name in known)
                raise ConfigError(f"{path}: unknown setting {section}.{name}{_hint(f'{section}.{name}', names)}")
            found.append((section, known[section, name], value))
    return found


def _explain(item: Any, origin: dict[tuple[str, str], str]) -> str:
    location = tuple(str(part) for part in item["loc"])
    source = origin.get((location[0], location[1])) if len(location) > 1 else None
    message = item["msg"].removeprefix("Value error, ")
    return f"{source or '.'.join(location)}: {message}" + (f" (got {item['input']!r})" if source else "")
