"""Which implementation of the decoder's operations runs on a device: chosen once, at start."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

import torch

from weir_kernels import reference, torch_ops
from weir_kernels.ragged import RaggedBatch

OLDEST_NVIDIA = (8, 0)
Backend = Literal["auto", "triton", "cpu", "reference"]


class KernelError(ValueError):
    """The wanted kernels do not run on this device."""


class NormRopeWriteKv(Protocol):
    """See `reference.norm_rope_write_kv`."""

    def __call__(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        q_weight: torch.Tensor | None,
        k_weight: torch.Tensor | None,
        eps: float,
        cos: torch.Tensor,
        sin: torch.Tensor,
        positions: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
    ) -> torch.Tensor: ...


class PagedAttention(Protocol):
    """See `reference.paged_attention`."""

    def __call__(
        self,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        batch: RaggedBatch,
        scale: float,
        sliding_window: int | None = None,
    ) -> torch.Tensor: ...


@dataclass(frozen=True, slots=True)
class Kernels:
    """The operations of one backend; `reference` says what each computes.

    float8_kv: whether the KV cache may be float8_e4m3fn.
    """

    name: str
    float8_kv: bool
    rms_norm: Callable[[torch.Tensor, torch.Tensor, float], torch.Tensor]
    add_rms_norm: Callable[[torch.Tensor, torch.Tensor, torch.Tensor, float], tuple[torch.Tensor, torch.Tensor]]
    norm_rope_write_kv: NormRopeWriteKv
    paged_attention: PagedAttention
    silu_mul: Callable[[torch.Tensor], torch.Tensor]


def pick(device: torch.device, wanted: Backend = "auto") -> Kernels:
    """The kernels for a device. auto: on a GPU Triton, or the reference where Triton does not run; elsewhere torch.

    Raises KernelError when the wanted backend does not run on the device. With TRITON_INTERPRET=1 in the environment,
    Triton runs on a CPU.
    """
    if wanted == "auto":
        wanted = "cpu" if device.type != "cuda" else "triton" if _triton_compiles_for(device) else "reference"
    if wanted == "triton" and device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        raise KernelError(f"the triton kernels need a GPU, not device {device}; use kernels cpu or reference")
    if wanted == "triton" and importlib.util.find_spec("triton") is None:
        raise KernelError("the triton kernels need the package triton, which is not installed; use kernels reference")
    if wanted == "cpu" and device.type != "cpu":
        raise KernelError(f"the cpu kernels need device cpu, not {device}; use kernels triton or reference")
    if wanted == "triton":
        return _triton_kernels()
    return _torch_kernels() if wanted == "cpu" else _reference_kernels()


def _triton_compiles_for(device: torch.device) -> bool:
    if importlib.util.find_spec("triton") is None:
        return False
    if torch.version.hip or not torch.cuda.is_available():
        return True
    return torch.cuda.get_device_capability(device) >= OLDEST_NVIDIA


def _reference_kernels() -> Kernels:
    return Kernels(
        name="reference",
        float8_kv=True,
        rms_norm=reference.rms_norm,
        add_rms_norm=reference.add_rms_norm,
        norm_rope_write_kv=reference.norm_rope_write_kv,
        paged_attention=reference.paged_attention,
        silu_mul=reference.silu_mul,
    )


def _torch_kernels() -> Kernels:
    return Kernels(
        name="torch",
        float8_kv=False,
        rms_norm=reference.rms_norm,
        add_rms_norm=reference.add_rms_norm,
        norm_rope_write_kv=torch_ops.norm_rope_write_kv,
        paged_attention=torch_ops.PagedAttention(),
        silu_mul=reference.silu_mul,
    )


def _triton_kernels() -> Kernels:
    # Imported only where it is used: Triton has no wheel for every platform that serves on a CPU.
    from weir_kernels import activation, attention, norm, qkv

    return Kernels(
        name="triton",
        float8_kv=True,
        rms_norm=norm.rms_norm,
        add_rms_norm=norm.add_rms_norm,
        norm_rope_write_kv=qkv.norm_rope_write_kv,
        paged_attention=attention.paged_attention,
        silu_mul=activation.silu_mul,
    )
