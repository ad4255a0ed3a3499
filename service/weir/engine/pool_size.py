"""How many KV blocks the memory holds: what was asked for, or a share of what weights and steps leave."""

from __future__ import annotations

from pathlib import Path

import psutil
import torch

from weir.config import ConfigError, EngineSettings, Settings, format_size
from weir.engine.blocks import blocks_for
from weir.engine.gpu_batch import StepShape
from weir.models.cpu_decoder import CpuDecoder
from weir.models.decoder import Decoder
from weir.models.kv_cache import resolve_kv_dtype
from weir.models.loader import resolve_dtype
from weir.models.spec import ModelSpec
from weir.models.tensors import num_parameters


def pool_blocks(engine: EngineSettings, decoder: Decoder | CpuDecoder, shape: StepShape, max_model_len: int) -> int:
    """Blocks of the KV pool. Raises ConfigError when one request of the model length would not fit.

    Raises ValueError when the kernels cannot compute the steps that are measured on a GPU.
    """
    bytes_per_block = decoder.kv_bytes_per_block(shape.block_size)
    if engine.kv_memory_bytes is not None:
        memory, source = engine.kv_memory_bytes, "kv-memory"
    else:
        memory, source = int(_left_by_steps(engine, decoder, shape) * engine.kv_memory_fraction), "kv-memory-fraction"
    _check_one_request(memory, source, bytes_per_block, shape.max_blocks, shape.block_size, max_model_len)
    # More than every running choice at full length could never be used at once.
    num_blocks = min(memory // bytes_per_block, engine.max_running * shape.max_blocks)
    if num_blocks * bytes_per_block > (has := total_memory(decoder.device)):
        raise ConfigError(
            f"the KV pool ({source}: {format_size(memory)}) is more than all memory there is, {format_size(has)}"
        )
    return num_blocks


def check_before_loading(
    settings: Settings, spec: ModelSpec, device: torch.device, block_size: int, length: int
) -> None:
    """Raise ConfigError for what the config alone shows, before weights are read that may take minutes.

    length: the model length that is served.
    """
    element = resolve_dtype(settings.model.dtype, spec)
    weights_bytes, has = num_parameters(spec) * element.itemsize, total_memory(device)
    if weights_bytes > has:
        raise ConfigError(
            f"the weights take {format_size(weights_bytes)} in {str(element).removeprefix('torch.')}, and {device} has "
            f"{format_size(has)} of memory; see weir size"
        )
    engine = settings.engine
    if engine.kv_memory_bytes is not None:
        # Kernels may pad a block, so this is the least that it takes.
        least = block_size * spec.kv_bytes_per_token(resolve_kv_dtype(engine.kv_cache_dtype, element).itemsize)
        _check_one_request(
            engine.kv_memory_bytes, "kv-memory", least, blocks_for(length, block_size), block_size, length
        )


def total_memory(device: torch.device) -> int:
    """Bytes of memory that the device has, at most what the container may use."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[1])
    return min([int(psutil.virtual_memory().total), *(limit for limit, _ in _cgroup())])


def _check_one_request(
    memory: int, source: str, bytes_per_block: int, max_blocks: int, block_size: int, max_model_len: int
) -> None:
    if memory < max_blocks * bytes_per_block:
        tokens = memory // bytes_per_block * block_size
        raise ConfigError(
            f"the KV pool ({source}: {format_size(memory)}) holds {tokens} tokens, but one request of max-model-len "
            f"{max_model_len} needs {format_size(max_blocks * bytes_per_block)}: "
            "give the pool more memory, or lower max-model-len"
        )


def _left_by_steps(engine: EngineSettings, decoder: Decoder | CpuDecoder, shape: StepShape) -> int:
    """Free memory of the device, less what steps need on a GPU beside the weights."""
    device = decoder.device
    if device.type != "cuda":
        available = int(psutil.virtual_memory().available)
        return min([available, *(max(0, limit - used) for limit, used in _cgroup())])
    torch.cuda.empty_cache()
    free = torch.cuda.mem_get_info(device)[0]
    if isinstance(decoder, Decoder) and decoder.kernels == "triton":
        from weir.engine.gpu_load import step_bytes  # late: it imports Triton, which not every machine has

        return max(0, free - step_bytes(decoder, shape, engine.cuda_graphs))
    return free


def _cgroup() -> list[tuple[int, int]]:
    """Limit and use of the cgroup's memory (v2, then v1), if it has a limit."""
    for limit_file, used_file in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        try:
            limit, used = Path(limit_file).read_text().strip(), int(Path(used_file).read_text())
        except (OSError, ValueError):
            continue
        return [] if limit == "max" else [(int(limit), used)]
    return []
