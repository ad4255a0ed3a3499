"""The cos and sin of every position, computed once in float32, as the checkpoints were trained."""

from __future__ import annotations

import math

import torch

from weir.models.rope import LinearScaling, Llama3Scaling, RopeSpec, YarnScaling


def rope_table(
    rope: RopeSpec, head_dim: int, max_positions: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """(cos, sin), each [max_positions, head_dim / 2] float32; frequency i turns the pair (i, i + head_dim / 2)."""
    frequencies = _scaled(rope, head_dim)
    angles = torch.outer(torch.arange(max_positions, dtype=torch.float32), frequencies)
    factor = rope.scaling.attention_factor if isinstance(rope.scaling, YarnScaling) else 1.0
    return (angles.cos() * factor).to(device), (angles.sin() * factor).to(device)


def _scaled(rope: RopeSpec, head_dim: int) -> torch.Tensor:
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    frequencies = 1.0 / (rope.theta**exponents)
    match rope.scaling:
        case None:
            return frequencies
        case LinearScaling(factor):
            return frequencies / factor
        case Llama3Scaling() as scaling:
            return _llama3(frequencies, scaling)
        case YarnScaling() as scaling:
            return _yarn(frequencies, rope.theta, scaling)


def _llama3(frequencies: torch.Tensor, scaling: Llama3Scaling) -> torch.Tensor:
    wavelengths = 2 * math.pi / frequencies
    # 1 below the short wavelength bound (kept), 0 above the long one (divided), linear in turns per context between.
    turns = scaling.original_max_positions / wavelengths
    kept = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    kept = kept.clamp(0, 1)
    return kept * frequencies + (1 - kept) * frequencies / scaling.factor


def _yarn(frequencies: torch.Tensor, theta: float, scaling: YarnScaling) -> torch.Tensor:
    half = len(frequencies)

    def dimension(turns: float) -> float:
        """The dimension whose wave turns that often within the original length."""
        return half * math.log(scaling.original_max_positions / (turns * 2 * math.pi)) / math.log(theta)

    low, high = dimension(scaling.beta_fast), dimension(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, 2 * half - 1)
    if low == high:
        high += 0.001  # no dimension lies between the bounds; avoids 0 / 0
    interpolated = ((torch.arange(half, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    return interpolated * frequencies / scaling.factor + (1 - interpolated) * frequencies
