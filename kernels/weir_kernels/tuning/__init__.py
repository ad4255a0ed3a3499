"""Launch parameters of attention, looked up in committed tables: never searched for while serving."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from importlib import resources
from typing import Literal

import torch

Regime = Literal["decode", "prefill"]


@dataclass(frozen=True, slots=True)
class TileConfig:
    """block_m: rows of packed query heads; tile: KV tokens of one loop step; warps, stages: Triton's options.

    min_chunk: fewest KV tokens worth a program of their own (decode). programs_per_sm: how many programs the splits
    of a decode batch are meant to give each multiprocessor (decode).
    """

    block_m: int
    tile: int
    warps: int
    stages: int
    min_chunk: int = 0
    programs_per_sm: int = 0


@dataclass(frozen=True, slots=True)
class Chip:
    """arch: `sm_90`, `gfx942`, ... or `default`; processors: multiprocessors or compute units."""

    arch: str
    processors: int


@functools.cache
def chip_of(device: torch.device) -> Chip:
    """What a device is. A CPU (Triton's interpreter) counts as an unknown chip with one processor."""
    if device.type != "cuda":
        return Chip("default", 1)
    properties = torch.cuda.get_device_properties(device)
    if torch.version.hip:
        return Chip(properties.gcnArchName.split(":")[0], properties.multi_processor_count)
    return Chip(f"sm_{properties.major}{properties.minor}", properties.multi_processor_count)


@functools.cache
def load_table(arch: str) -> dict[str, TileConfig]:
    """The table of a chip, keyed `regime/head_dim/block_size/dtype` with `*` for any; the default table if unknown."""
    folder = resources.files(__name__)
    table = folder / f"{arch}.json"
    if not table.is_file():
        table = folder / "default.json"
    entries = json.loads(table.read_text())["entries"]
    return {key: TileConfig(**entry) for key, entry in entries.items()}


@functools.cache
def tile_config(arch: str, head_dim: int, block_size: int, dtype: torch.dtype, regime: Regime) -> TileConfig:
    """The most specific entry for a kernel: the exact key, then any dtype, then any block size, then any head size.

    dtype: of the KV cache.
    Raises KeyError when a table lacks its `regime/*/*/*` entry.
    """
    table = load_table(arch)
    name = str(dtype).removeprefix("torch.")
    keys = (
        f"{regime}/{head_dim}/{block_size}/{name}",
        f"{regime}/{head_dim}/{block_size}/*",
        f"{regime}/{head_dim}/*/{name}",
        f"{regime}/{head_dim}/*/*",
        f"{regime}/*/*/*",
    )
    for key in keys:
        if key in table:
            return table[key]
    raise KeyError(f"the table of {arch} has no entry {keys[-1]}")
