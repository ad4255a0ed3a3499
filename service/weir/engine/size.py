"""What a model needs, what a memory holds of it, and what would make it fit: the arithmetic of `weir size`."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

from weir.config import ConfigError
from weir.engine.blocks import blocks_for
from weir.models.kv_cache import KvDtype, resolve_kv_dtype
from weir.models.loader import resolve_dtype
from weir.models.spec import ModelSpec
from weir.models.tensors import num_parameters


@dataclass(frozen=True, slots=True)
class PoolSize:
    """A KV pool that is a share of what the weights leave. tokens: in whole blocks; full_requests: of max_model_len."""

    fraction: float
    bytes: int
    blocks: int
    tokens: int
    full_requests: int


@dataclass(frozen=True, slots=True)
class WhatFits:
    """Changes of which each alone makes one request of the model length fit; None where it cannot.

    memory_bytes: the least memory. kv_memory_fraction: the least share, in hundredths. max_model_len: the longest.
    dtype, kv_cache_dtype: number types that take less.
    """

    memory_bytes: int
    kv_memory_fraction: float | None
    max_model_len: int | None
    dtype: str | None
    kv_cache_dtype: KvDtype | None


@dataclass(frozen=True, slots=True)
class SizeReport:
    """Sizes in bytes. `memory_bytes` is for weights and KV cache together; activations are not counted.

    pool: at the share that serve would take; whole: everything beside the weights. A model fits when the pool holds one
    request of max_model_len; what_fits says what to change when it does not.
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
    left_bytes: int
    pool: PoolSize
    whole: PoolSize
    what_fits: WhatFits | None

    @property
    def fits(self) -> bool:
        """Whether serve would start with it."""
        return self.what_fits is None


@dataclass(frozen=True, slots=True)
class _Sizes:
    """What decides: bytes, and tokens in a block."""

    memory: int
    weights: int
    block: int
    block_size: int
    max_model_len: int

    @property
    def left(self) -> int:
        return max(0, self.memory - self.weights)

    @property
    def needed(self) -> int:
        """The pool of one request of the model length."""
        return blocks_for(self.max_model_len, self.block_size) * self.block

    def pool(self, fraction: float) -> PoolSize:
        memory = int(self.left * fraction)
        blocks = memory // self.block
        requests = blocks // blocks_for(self.max_model_len, self.block_size)
        return PoolSize(fraction, memory, blocks, blocks * self.block_size, requests)


def size_report(
    folder: str | Path,
    memory_bytes: int,
    block_size: int = 16,
    dtype: str = "auto",
    kv_cache_dtype: KvDtype = "auto",
    kv_memory_fraction: float = 1.0,
    max_model_len: int | None = None,
) -> SizeReport:
    """Read the config and do the arithmetic; weights are not read.

    KV bytes a token = 2 * layers * kv_heads * head_dim * bytes. Raises ModelFolderError and UnsupportedModelError, and
    ConfigError for a length beyond the model's own.
    """
    spec = ModelSpec.from_folder(folder)
    if max_model_len is not None and max_model_len > spec.max_position_embeddings:
        raise ConfigError(
            f"max-model-len {max_model_len} is more than the model's own limit of {spec.max_position_embeddings}"
        )
    element = resolve_dtype(dtype, spec)
    kv_bytes_per_token = spec.kv_bytes_per_token(resolve_kv_dtype(kv_cache_dtype, element).itemsize)
    sizes = _Sizes(
        memory_bytes,
        num_parameters(spec) * element.itemsize,
        block_size * kv_bytes_per_token,
        block_size,
        max_model_len or spec.max_position_embeddings,
    )
    pool = sizes.pool(kv_memory_fraction)
    return SizeReport(
        model=Path(folder).name,
        architecture=spec.architecture,
        dtype=str(element).removeprefix("torch."),
        parameters=num_parameters(spec),
        weights_bytes=sizes.weights,
        kv_bytes_per_token=kv_bytes_per_token,
        kv_bytes_per_token_layer=kv_bytes_per_token // spec.num_layers,
        max_model_len=sizes.max_model_len,
        block_size=block_size,
        memory_bytes=memory_bytes,
        left_bytes=sizes.left,
        pool=pool,
        whole=sizes.pool(1.0),
        what_fits=None if pool.full_requests else _what_fits(sizes, pool, element.itemsize, kv_cache_dtype == "auto"),
    )


def _what_fits(sizes: _Sizes, pool: PoolSize, itemsize: int, kv_like_weights: bool) -> WhatFits:
    def holds(changed: _Sizes, fraction: float = pool.fraction) -> bool:
        return changed.pool(fraction).full_requests > 0

    hundredths = next((h for h in range(1, 101) if holds(sizes, h / 100)), None)
    shorter = replace(sizes, weights=sizes.weights // 2, block=sizes.block // (2 if kv_like_weights else 1))
    float8 = replace(sizes, block=sizes.block // itemsize)
    return WhatFits(
        memory_bytes=sizes.weights + math.ceil(sizes.needed / pool.fraction) + 1,
        kv_memory_fraction=None if hundredths is None else hundredths / 100,
        max_model_len=pool.tokens or None,
        dtype="bfloat16" if itemsize == 4 and holds(shorter) else None,
        kv_cache_dtype="fp8_e4m3" if kv_like_weights and holds(float8) else None,
    )
