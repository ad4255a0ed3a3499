"""Measure launch parameters on this machine's GPU and write its table: `python -m weir_kernels.tuning.search [FILE]`.

Every candidate must give what the committed table gives before its time counts. Takes minutes, needs the GPU alone.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path

import torch
import triton

from weir_kernels.attention import FLOAT8, plan_launches
from weir_kernels.launch import Launch
from weir_kernels.tuning import Chip, Regime, TileConfig, chip_of, load_table, tile_config
from weir_kernels.tuning.problems import Layout, Problem, decode_problem, prefill_problem

Timer = Callable[[Callable[[], None]], float]


def candidates(regime: Regime) -> Iterator[TileConfig]:
    """What is worth trying."""
    if regime == "decode":
        for tile, warps, stages, programs in product((32, 64, 128), (4, 8), (2, 3, 5, 7), (2, 4, 8)):
            yield TileConfig(16, tile, warps, stages, min_chunk=256, programs_per_sm=programs)
    else:
        for block_m, tile, warps, stages in product((32, 64, 128), (32, 64, 128), (4, 8), (1, 2, 3)):
            yield TileConfig(block_m, tile, warps, stages)


def fastest(problem: Problem, regime: Regime, chip: Chip, options: Sequence[TileConfig], timer: Timer) -> TileConfig:
    """The option of least time; the committed one if none is faster. timer: milliseconds of a call."""
    head_dim, block_size, dtype = problem.q.shape[2], problem.k_cache.shape[1], problem.k_cache.dtype
    best = tile_config(chip.arch, head_dim, block_size, dtype, regime)
    expected = torch.empty_like(problem.q)
    launches = launches_with(problem, expected, regime, chip, best)
    _run(launches)
    best_ms = timer(lambda: _run(launches))
    for option in options:
        out = torch.empty_like(problem.q)
        tried = launches_with(problem, out, regime, chip, option)
        try:
            _run(tried)
        except triton.runtime.errors.OutOfResources:
            continue
        if not torch.allclose(out.float(), expected.float(), rtol=2e-2, atol=2e-2):
            raise ValueError(f"{option} gives another result than the committed parameters")
        elapsed = timer(lambda launches=tried: _run(launches))  # type: ignore[misc]
        if elapsed < best_ms:
            best, best_ms = option, elapsed
    return best


def launches_with(problem: Problem, out: torch.Tensor, regime: Regime, chip: Chip, config: TileConfig) -> list[Launch]:
    """The launches of a problem with given parameters."""
    return plan_launches(
        out,
        problem.q,
        problem.k_cache,
        problem.v_cache,
        problem.batch,
        problem.q.shape[2] ** -0.5,
        None,
        soft_cap=None,
        sinks=None,
        k_scale=1.0,
        v_scale=1.0,
        split_tokens=None,
        chip=chip,
        configs={regime: config},
    )


def write_table(path: Path, source: str, entries: dict[str, TileConfig]) -> None:
    """One line an entry; parameters that a regime does not use are left out."""
    lines = [
        f"    {json.dumps(key)}: {json.dumps({k: v for k, v in asdict(config).items() if v})}"
        for key, config in sorted(entries.items())
    ]
    path.write_text(f'{{\n  "source": {json.dumps(source)},\n  "entries": {{\n' + ",\n".join(lines) + "\n  }\n}\n")


def main(path: Path | None) -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    chip = chip_of(device)
    entries = dict(load_table(chip.arch))
    for head_dim, block_size, dtype in product((64, 80, 96, 128, 256), (16, 64), (torch.bfloat16, FLOAT8)):
        layout = Layout(32, 8, head_dim, block_size, torch.bfloat16, dtype)
        problems: dict[Regime, Problem] = {
            "decode": decode_problem(layout, rows=32, context=4096, device=device),
            "prefill": prefill_problem(layout, tokens=4096, context=0, device=device),
        }
        for regime, problem in problems.items():
            key = f"{regime}/{head_dim}/{block_size}/{str(dtype).removeprefix('torch.')}"
            entries[key] = fastest(problem, regime, chip, list(candidates(regime)), _milliseconds)
            print(key, entries[key], flush=True)
    source = f"measured on {torch.cuda.get_device_name(device)}, torch {torch.__version__}, Triton {triton.__version__}"
    write_table(path or Path(__file__).with_name(f"{chip.arch}.json"), source, entries)


def _run(launches: Sequence[Launch]) -> None:
    for launch in launches:
        launch.run()


def _milliseconds(call: Callable[[], None]) -> float:
    return float(triton.testing.do_bench(call, return_mode="median"))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
