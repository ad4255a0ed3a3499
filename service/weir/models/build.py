"""From a model folder and a few choices to a decoder that is ready to compute."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch
from weir_kernels import cpu, dispatch

from weir.models.cpu_decoder import CpuDecoder
from weir.models.decoder import Decoder
from weir.models.kv_cache import KvDtype, resolve_kv_dtype
from weir.models.loader import Report, dummy_weights, load_weights, no_report, resolve_dtype
from weir.models.spec import ModelSpec


def resolve_device(setting: str) -> torch.device:
    """`auto` is a GPU when there is one. Raises KernelError for a GPU that is not there."""
    available = torch.cuda.is_available()
    if setting == "auto":
        setting = "cuda" if available else "cpu"
    if setting.startswith("cuda") and not available:
        raise dispatch.KernelError(f"device {setting} was asked for, and torch finds no GPU; use device cpu or auto")
    return torch.device(setting)


def build_decoder(
    folder: str | Path,
    *,
    dtype: str = "auto",
    device: str = "auto",
    kernels: dispatch.Backend = "auto",
    kv_cache_dtype: KvDtype = "auto",
    load_format: Literal["auto", "dummy"] = "auto",
    threads: int | None = None,
    max_positions: int | None = None,
    report: Report = no_report,
) -> Decoder | CpuDecoder:
    """Read the config and the weights (or make random ones) and choose the kernels.

    A bf16 model on a CPU with AVX-512 or AVX2 gets the fused step, everything else the decoder over `Kernels`.
    threads: of the fused step; default, what the container may use. max_positions: the longest sequence that will be
    computed; default, the model's own, whose tables can be large. report: is told how far this is.

    Raises a ModelError that says what is wrong with the folder, or KernelError when the kernels do not run on the
    device or have no KV cache of the dtype.
    """
    spec = ModelSpec.from_folder(folder)
    if max_positions is not None:
        spec = replace(spec, max_position_embeddings=max_positions)
    target = resolve_device(device)
    ops = dispatch.pick(target, kernels)
    if kv_cache_dtype != "auto" and not ops.float8_kv:
        raise dispatch.KernelError(
            f"the {ops.name} kernels have no KV cache of dtype {kv_cache_dtype}; use kernels triton or reference, or "
            "kv-cache-dtype auto"
        )
    wanted = resolve_dtype(dtype, spec)
    if load_format == "dummy":
        report("making weights up")
        weights = dummy_weights(spec, wanted, target)
    else:
        weights = load_weights(folder, spec, wanted, target, report)
    if target.type == "cpu" and wanted == torch.bfloat16 and kernels in ("auto", "cpu"):
        report("preparing the CPU kernels")  # compiled, at their first use
        if cpu.available():
            return CpuDecoder(spec, weights, threads, report=report)
    return Decoder(spec, weights, ops, resolve_kv_dtype(kv_cache_dtype, wanted))
