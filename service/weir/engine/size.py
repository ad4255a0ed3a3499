"""What a model needs and what a memory holds: the arithmetic of `weir size`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from weir.engine.blocks import blocks_for
from weir.models.kv_cache import KvDtype, resolve_kv_dtype
from weir.models.loader import resolve_dtype
from weir.models.spec import ModelSpec
from weir.models.tensors import num_parameters


@dataclass(frozen=True, slots=True)
class SizeReport:
    """Sizes in bytes. `memory_bytes` is for weights and KV cache together; activations are not counted.

    kv_tokens: tokens that fit beside the weights, in whole blocks. full_requests: requests of max_model_len tokens
    that fit at once.
    """

    model: str
    architecture: str
    dtype: str
    parameters: int
    weights_bytes: int
    kv_bytes_per_token: int
    kv_bytes_per_token_layer: int
    max_model_len: int
    block_size: int
    memory_bytes: int
    kv_memory_bytes: int
    kv_blocks: int
    kv_tokens: int
    full_requests: int


def size_report(
    folder: str | Path,
    memory_bytes: int,
    block_size: int = 16,
    dtype: str = "auto",
    kv_cache_dtype: KvDtype = "auto",
) -> SizeReport:
    """Read the config and do the arithmetic; weights are not read.

    KV bytes a token = 2 * layers * kv_heads * head_dim * bytes. Raises ModelFolderError and UnsupportedModelError.
    """
    spec = ModelSpec.from_folder(folder)
    element = resolve_dtype(dtype, spec)
    kv_bytes_per_token = spec.kv_bytes_per_token(resolve_kv_dtype(kv_cache_dtype, element).itemsize)
    weights_bytes = num_parameters(spec) * element.itemsize
    kv_memory_bytes = max(0, memory_bytes - weights_bytes)
    kv_blocks = kv_memory_bytes // (block_size * kv_bytes_per_token)
    blocks_per_request = blocks_for(spec.max_position_embeddings, block_size)
    return SizeReport(
        model=Path(folder).name,
        architecture=spec.architecture,
        dtype=str(element).removeprefix("torch."),
        parameters=num_parameters(spec),
        weights_bytes=weights_bytes,
        kv_bytes_per_token=kv_bytes_per_token,
        kv_bytes_per_token_layer=kv_bytes_per_token // spec.num_layers,
        max_model_len=spec.max_position_embeddings,
        block_size=block_size,
        memory_bytes=memory_bytes,
        kv_memory_bytes=kv_memory_bytes,
        kv_blocks=kv_blocks,
        kv_tokens=kv_blocks * block_size,
        full_requests=kv_blocks // blocks_per_request,
    )
