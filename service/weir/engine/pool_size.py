"""How many KV blocks the memory holds: what was asked for, or a share of what weights and steps leave."""

from __future__ import annotations

from pathlib import Path

import psutil
import torch

from weir.config import ConfigError, EngineSettings, ModelSettings, format_size
from weir.engine.gpu_batch import StepShape
from weir.models.build import resolve_device
from weir.models.cpu_decoder import CpuDecoder
from weir.models.decoder import Decoder
from weir.models.kv_cache import resolve_kv_dtype
from weir.models.loader import resolve_dtype
from weir.models.spec import ModelSpec
from weir.models.tensors import num_parameters


def check_memory(engine: EngineSettings, spec: ModelSpec, model: ModelSettings, max_model_len: int) -> None:
    """Raise ConfigError for what could not fit even if the device were empty, before any of it is allocated."""
    device = resolve_device(model.device)
    dtype = resolve_dtype(model.dtype, spec)
    total, weights = _total(device), num_parameters(spec) * dtype.itemsize
    if weights > total:
        raise ConfigError(
            f"the weights of {model.model} take {format_size(weights)}, and the {device.type} has "
            f"{format_size(total)}: serve a smaller model, or one with more memory"
        )
    if engine.kv_memory_bytes is not None:
        memory, source = engine.kv_memory_bytes, "kv-memory"
    else:
        memory, source = int((total - weights) * engine.kv_memory_fraction), "kv-memory-fraction"
    # What kernels add for alignment comes on top, and pool_blocks counts it.
    a_token = spec.kv_bytes_per_token(resolve_kv_dtype(engine.kv_cache_dtype, dtype).itemsize)
    if a_token * max_model_len > memory:
        raise _too_small(memory, source, memory // a_token, max_model_len, a_token * max_model_len)


def pool_blocks(engine: EngineSettings, decoder: Decoder | CpuDecoder, shape: StepShape, max_model_len: int) -> int:
    """Blocks of the KV pool. Raises ConfigError when one request of the model length would not fit.

    Raises ValueError when the kernels cannot compute the steps that are measured on a GPU.
    """
    bytes_per_block = decoder.kv_bytes_per_block(shape.block_size)
    if engine.kv_memory_bytes is not None:
        memory, source = engine.kv_memory_bytes, "kv-memory"
    else:
        memory, source = int(_left_by_steps(engine, decoder, shape) * engine.kv_memory_fraction), "kv-memory-fraction"
    # More than every running choice at full length could never be used at once.
    num_blocks = min(memory // bytes_per_block, engine.max_running * shape.max_blocks)
    if num_blocks < shape.max_blocks:
        tokens, needed = num_blocks * shape.block_size, shape.max_blocks * bytes_per_block
        raise _too_small(memory, source, tokens, max_model_len, needed)
    if num_blocks * bytes_per_block > (total := _total(decoder.device)):
        raise ConfigError(
            f"the KV pool ({source}: {format_size(memory)}) is more than all memory there is, {format_size(total)}"
        )
    return num_blocks


def _too_small(memory: int, source: str, tokens: int, max_model_len: int, needed: int) -> ConfigError:
    return ConfigError(
        f"the KV pool ({source}: {format_size(memory)}) holds {tokens} tokens, but one request of max-model-len "
        f"{max_model_len} needs {format_size(needed)}: give the pool more memory, or lower max-model-len"
    )


def _total(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[1])
    total = int(psutil.virtual_memory().total)
    for file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            limit = Path(file).read_text().strip()
        except OSError:
            continue
        return total if limit == "max" else min(total, int(limit))
    return total


def _left_by_steps(engine: EngineSettings, decoder: Decoder | CpuDecoder, shape: StepShape) -> int:
    """Free memory of the device, less what steps need on a GPU beside the weights."""
    device = decoder.device
    if device.type != "cuda":
        return _cgroup_free(int(psutil.virtual_memory().available))
    torch.cuda.empty_cache()
    free = torch.cuda.mem_get_info(device)[0]
    if isinstance(decoder, Decoder) and decoder.kernels == "triton":
        from weir.engine.gpu_load import step_bytes  # late: it imports Triton, which not every machine has

        return max(0, free - step_bytes(decoder, shape, engine.cuda_graphs))
    return free


def _cgroup_free(available: int) -> int:
    """Free memory, at most what the cgroup (v2, then v1) leaves."""
    for limit_file, used_file in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        try:
            limit, used = Path(limit_file).read_text().strip(), int(Path(used_file).read_text())
        except (OSError, ValueError):
            continue
        return available if limit == "max" else min(available, max(0, int(limit) - used))
    return available
