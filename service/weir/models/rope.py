"""Rotary position embeddings: which scaling a config asks for, and the cos and sin tables it gives."""

from __future__ import annotations

import math
from dataclasses import dataclass

from weir.models.config_values import ConfigValues
from weir.models.errors import ModelFolderError, UnsupportedModelError

# A hundred times the longest of any model there is.
MOST_POSITIONS = 2**30
_MOST_FACTOR = 1e6


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
        """The longest sequence: the config's, or what YaRN extends the original length to. Raises ModelFolderError."""
        if not isinstance(self.scaling, YarnScaling):
            return configured
        extended = int(self.scaling.original_max_positions * self.scaling.factor)
        if extended > MOST_POSITIONS:
            raise ModelFolderError(f"config.json: YaRN extends to {extended} positions; at most {MOST_POSITIONS} are")
        return max(configured, extended)


def rope_from_config(config: ConfigValues) -> RopeSpec:
    """Read `rope_parameters` (transformers 5) or `rope_theta` with `rope_scaling` (before).

    Raises UnsupportedModelError for a scaling that is not implemented, ModelFolderError for a missing or bad parameter.
    """
    parameters = config.section("rope_parameters") or config.section("rope_scaling") or ConfigValues({})
    if parameters.has_sections():
        raise UnsupportedModelError("rope_parameters that differ between layers are not supported")
    for values in (parameters, config):
        if (partial := values.number("partial_rotary_factor", 1.0)) != 1.0:
            raise UnsupportedModelError(f"partial_rotary_factor {partial} is not supported, only 1.0")
    theta = parameters.number("rope_theta", config.number("rope_theta", 10000.0, above=1.0), above=1.0)
    kind = parameters.text("rope_type", parameters.text("type", "default"))
    # Dynamic NTK changes nothing until a sequence is longer than max_position_embeddings, which none ever is here.
    if kind in ("default", "dynamic"):
        return RopeSpec(theta)
    if kind == "linear":
        return RopeSpec(theta, LinearScaling(parameters.number("factor", most=_MOST_FACTOR)))
    if kind == "llama3":
        return RopeSpec(theta, _llama3(parameters, config))
    if kind == "yarn":
        return RopeSpec(theta, _yarn(parameters, config))
    raise UnsupportedModelError(
        f"rope scaling {kind[:80]!r} is not supported; supported: linear, dynamic, llama3, yarn"
    )


def _original_max_positions(parameters: ConfigValues, config: ConfigValues) -> int:
    configured = config.integer("max_position_embeddings", most=MOST_POSITIONS)
    return parameters.integer("original_max_position_embeddings", configured, most=MOST_POSITIONS)


def _llama3(parameters: ConfigValues, config: ConfigValues) -> Llama3Scaling:
    low = parameters.number("low_freq_factor", most=_MOST_FACTOR)
    return Llama3Scaling(
        factor=parameters.number("factor", most=_MOST_FACTOR),
        low_freq_factor=low,
        high_freq_factor=parameters.number("high_freq_factor", above=low, most=_MOST_FACTOR),
        original_max_positions=_original_max_positions(parameters, config),
    )


def _yarn(parameters: ConfigValues, config: ConfigValues) -> YarnScaling:
    factor = parameters.number("factor", most=_MOST_FACTOR)
    derived = _attention_factor(parameters, factor)
    return YarnScaling(
        factor=factor,
        original_max_positions=_original_max_positions(parameters, config),
        attention_factor=parameters.number("attention_factor", derived, most=_MOST_FACTOR),
        beta_fast=parameters.number("beta_fast", 32.0, most=_MOST_FACTOR),
        beta_slow=parameters.number("beta_slow", 1.0, most=_MOST_FACTOR),
        truncate=parameters.flag("truncate", True),
    )


def _attention_factor(parameters: ConfigValues, factor: float) -> float:
    names = ("mscale", "mscale_all_dim")
    if all(parameters.raw(name) for name in names):  # 0 is absent
        mscale, mscale_all = (parameters.number(name, most=_MOST_FACTOR) for name in names)
        return _yarn_mscale(factor, mscale) / _yarn_mscale(factor, mscale_all)
    return _yarn_mscale(factor, 1.0)


def _yarn_mscale(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0
