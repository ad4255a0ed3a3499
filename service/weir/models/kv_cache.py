"""The paged KV cache of a model on one device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from weir.models.spec import ModelSpec

KvDtype = Literal["auto", "fp8_e4m3"]


def resolve_kv_dtype(setting: KvDtype, dtype: torch.dtype) -> torch.dtype:
    """What keys and values are stored in; auto: the model's own `dtype`."""
    return torch.float8_e4m3fn if setting == "fp8_e4m3" else dtype


@dataclass(frozen=True, slots=True)
class KvCache:
    """keys, values: one [num_blocks + 1, block_size, num_kv_heads, head_dim] tensor a layer, views of one allocation.

    Block 0 is the null block that pads block tables: never handed out, never written, always finite.
    """

    keys: tuple[torch.Tensor, ...]
    values: tuple[torch.Tensor, ...]
    num_blocks: int
    block_size: int

    @classmethod
    def allocate(
        cls, spec: ModelSpec, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> KvCache:
        """Room for num_blocks usable blocks (ids 1..num_blocks) of block_size tokens."""
        shape = (2, spec.num_layers, num_blocks + 1, block_size, spec.num_kv_heads, spec.head_dim)
        # zeros, not empty: on the CPU the pages come zeroed from the system on first touch anyway.
        keys, values = torch.zeros(shape, dtype=dtype, device=device).unbind(0)
        return cls(keys.unbind(0), values.unbind(0), num_blocks, block_size)

    def copy_blocks(self, source: list[int], target: list[int]) -> None:
        """Copy whole blocks within every layer, source[i] to target[i]. No target may also be a source."""
        if not source:
            return
        device = self.keys[0].device
        source_ids, target_ids = torch.tensor(source, device=device), torch.tensor(target, device=device)
        for layer in (*self.keys, *self.values):
            layer[target_ids] = layer[source_ids]
