"""Rotary position embeddings: which scaling a config asks for, and the cos and sin tables it gives."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from weir.models.errors import ModelFolderError, UnsupportedModelError


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Position interpolation: all frequencies divided by `factor`."""

    factor: float


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Llama 3.1: long wavelengths divided by `factor`, short ones kept, smooth in between."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_positions: int


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """YaRN (arXiv 2309.00071): interpolation by frequency, and cos and sin scaled by `attention_factor`."""

    factor: float
    original_max_positions: int
    attention_factor: float
    beta_fast: float
    beta_slow: float
    truncate: bool


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Base `theta` and the scaling of the frequencies; None is plain rotary embedding."""

    theta: float
    scaling: LinearScaling | Llama3Scaling | YarnScaling | None = None

    def max_positions(self, configured: int) -> int:
        """The longest sequence: the config's, or what YaRN extends the original length to."""
        if isinstance(self.scaling, YarnScaling):
            return max(configured, int(self.scaling.original_max_positions * self.scaling.factor))
        return configured


def rope_from_config(config: Mapping[str, Any]) -> RopeSpec:
    """Read `rope_parameters` (transformers 5) or `rope_theta` with `rope_scaling` (before).

    Raises UnsupportedModelError for a scaling that is not implemented, ModelFolderError for a missing parameter.
    """
    parameters: Mapping[str, Any] = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if any(isinstance(value, Mapping) for value in parameters.values()):
        raise UnsupportedModelError("rope_parameters that differ between layers are not supported")
    partial = parameters.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0))
    if partial not in (None, 1, 1.0):
        raise UnsupportedModelError(f"partial_rotary_factor {partial} is not supported, only 1.0")
    theta = float(parameters.get("rope_theta") or config.get("rope_theta") or 10000.0)
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    # Dynamic NTK changes nothing until a sequence is longer than max_position_embeddings, which none ever is here.
    if kind in ("default", "dynamic"):
        return RopeSpec(theta)
    if kind == "linear":
        return RopeSpec(theta, LinearScaling(_number(parameters, "factor")))
    if kind == "llama3":
        return RopeSpec(theta, _llama3(parameters, config))
    if kind == "yarn":
        return RopeSpec(theta, _yarn(parameters, config))
    raise UnsupportedModelError(f"rope scaling {kind!r} is not supported; supported: linear, dynamic, llama3, yarn")


def _number(parameters: Mapping[str, Any], key: str) -> float:
    value = parameters.get(key)
    if not isinstance(value, int | float) or isinstance(value, bool) or value <= 0:
        raise ModelFolderError(f"config.json: rope parameter {key} must be a positive number, not {value!r}")
    return float(value)


def _original_max_positions(parameters: Mapping[str, Any], config: Mapping[str, Any]) -> int:
    return int(parameters.get("original_max_position_embeddings") or config["max_position_embeddings"])


def _llama3(parameters: Mapping[str, Any], config: Mapping[str, Any]) -> Llama3Scaling:
    return Llama3Scaling(
        factor=_number(parameters, "factor"),
        low_freq_factor=_number(parameters, "low_freq_factor"),
        high_freq_factor=_number(parameters, "high_freq_factor"),
        original_max_positions=_original_max_positions(parameters, config),
    )


def _yarn(parameters: Mapping[str, Any], config: Mapping[str, Any]) -> YarnScaling:
    factor = _number(parameters, "factor")
    attention_factor = parameters.get("attention_factor")
    if attention_factor is None:
        mscale, mscale_all = parameters.get("mscale"), parameters.get("mscale_all_dim")
        if mscale and mscale_all:
            attention_factor = _yarn_mscale(factor, mscale) / _yarn_mscale(factor, mscale_all)
        else:
            attention_factor = _yarn_mscale(factor, 1.0)
    return YarnScaling(
        factor=factor,
        original_max_positions=_original_max_positions(parameters, config),
        attention_factor=float(attention_factor),
        beta_fast=float(parameters.get("beta_fast") or 32),
        beta_slow=float(parameters.get("beta_slow") or 1),
        truncate=bool(parameters.get("truncate", True)),
    )


def _yarn_mscale(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0
