"""Settings of `weir sidecar`: flags, or WEIR_SIDECAR_* in the environment, or defaults."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from weir.config import ConfigError, Seconds, is_service_link, public_name, refuse_unknown

ENV_PREFIX = "WEIR_SIDECAR_"


class SidecarSettings(BaseModel):
    """What the sidecar keeps up to date, and how often it may write."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    admin_address: str = Field("127.0.0.1:50052", description="the engine's admin service: HOST:PORT or unix:/path")
    host: str = Field("::", description="address of the metrics and health port; :: is every one, of IPv4 too")
    port: int = Field(9091, ge=0, le=65535, description="port of metrics and health; 0 picks a free one")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="least severe line to log")
    interval_s: Seconds = Field(2.0, gt=0, description="how often to look at the engine")
    deletion_cost: bool = Field(True, description="keep the annotation controller.kubernetes.io/pod-deletion-cost")
    deletion_cost_interval_s: Seconds = Field(60.0, description="shortest time between two writes of it")
    readiness_gate: bool = Field(False, description="keep the condition weir.inference/kv-ready")
    gate_max_wait_s: Seconds = Field(30.0, gt=0, description="estimated wait above which the gate closes")
    gate_max_closed_s: Seconds = Field(120.0, description="longest time the gate stays closed")
    pre_stop_delay_s: Seconds = Field(10.0, description="from SIGUSR1 to the drain, while endpoints are taken away")
    drain_timeout_s: Seconds = Field(120.0, description="how long the engine may take to finish its requests")


@dataclass(frozen=True, slots=True)
class PodIdentity:
    """The pod this sidecar is in; `uid` keeps it from writing to a later pod of the same name."""

    name: str
    namespace: str
    uid: str

    @staticmethod
    def from_environment(env: Mapping[str, str] | None = None) -> PodIdentity:
        """From POD_NAME, POD_NAMESPACE and POD_UID (downward API). Raises ConfigError when one is missing."""
        env = os.environ if env is None else env
        missing = [name for name in ("POD_NAME", "POD_NAMESPACE", "POD_UID") if not env.get(name)]
        if missing:
            raise ConfigError(f"{', '.join(missing)} must be set from the downward API")
        return PodIdentity(env["POD_NAME"], env["POD_NAMESPACE"], env["POD_UID"])


def add_flags(parser: argparse.ArgumentParser) -> None:
    """A flag for every setting."""
    for name, info in SidecarSettings.model_fields.items():
        flag = "--" + public_name(name).replace("_", "-")
        text = f"{info.description} (default: {info.default})".replace("%", "%%")
        if info.annotation is bool:
            parser.add_argument(flag, dest=name, action=argparse.BooleanOptionalAction, default=None, help=text)
        else:
            metavar = public_name(name).split("_")[-1].upper()
            parser.add_argument(flag, dest=name, default=None, metavar=metavar, help=text)


def load(flags: argparse.Namespace | None = None, env: Mapping[str, str] | None = None) -> SidecarSettings:
    """Flags over environment over defaults. Raises ConfigError that names every setting that is wrong."""
    env = os.environ if env is None else env
    env = {name: value for name, value in env.items() if name.startswith(ENV_PREFIX)}
    env = {name: value for name, value in env.items() if not is_service_link(name, value)}
    variables = {name: ENV_PREFIX + public_name(name).upper() for name in SidecarSettings.model_fields}
    refuse_unknown(env, variables.values())
    values: dict[str, object] = {}
    for name, variable in variables.items():
        if variable in env:
            values[name] = env[variable]
        if flags is not None and getattr(flags, name, None) is not None:
            values[name] = getattr(flags, name)
    try:
        return SidecarSettings.model_validate(values)
    except ValidationError as error:
        lines = [
            f"{public_name(str(item['loc'][0]))}: {item['msg'].removeprefix('Value error, ')} (got {item['input']!r})"
            for item in error.errors()
        ]
        raise ConfigError("\n".join(lines)) from None
