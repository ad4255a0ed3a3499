"""Launch parameters: lookup, and the search that writes tables."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from weir_kernels.tuning import Chip, TileConfig, load_table, tile_config
from weir_kernels.tuning.problems import Layout, decode_problem, prefill_problem
from weir_kernels.tuning.search import fastest, write_table

LAYOUT = Layout(4, 2, 64, 16, torch.float32, torch.float32)
CHIP = Chip("default", 4)


def test_the_most_specific_entry_wins_and_an_unknown_chip_gets_the_defaults() -> None:
    table = load_table("sm_90")
    assert tile_config("sm_90", 80, 16, torch.bfloat16, "decode") == table["decode/80/*/*"]
    assert tile_config("sm_90", 128, 64, torch.bfloat16, "decode") == table["decode/*/*/*"]
    assert load_table("sm_999") == load_table("default")


@pytest.mark.parametrize("arch", ["default", "sm_80", "sm_90", "sm_100", "gfx942"])
def test_every_table_has_an_entry_for_any_layout(arch: str) -> None:
    assert {"decode/*/*/*", "prefill/*/*/*"} <= set(load_table(arch))


def test_the_search_takes_the_fastest_that_gives_the_same_result() -> None:
    times = iter([3.0, 5.0, 1.0, 2.0])
    options = [TileConfig(16, tile, 4, 2, min_chunk=32, programs_per_sm=1) for tile in (16, 32, 64)]

    def timer(call: Callable[[], None]) -> float:
        call()
        return next(times)

    problem = decode_problem(LAYOUT, rows=2, context=70, device=torch.device("cpu"))
    assert fastest(problem, "decode", CHIP, options, timer) == options[1]
    slower = iter([1.0, 2.0])
    prompt = prefill_problem(LAYOUT, tokens=20, context=10, device=torch.device("cpu"))
    kept = fastest(prompt, "prefill", CHIP, [TileConfig(32, 16, 4, 1)], lambda call: next(slower))
    assert kept == tile_config("default", 64, 16, torch.float32, "prefill")


def test_a_written_table_is_read_back(tmp_path: Path) -> None:
    entries = {"decode/*/*/*": TileConfig(16, 32, 4, 5, 256, 4), "prefill/*/*/*": TileConfig(64, 64, 4, 3)}
    write_table(tmp_path / "t.json", "a card", entries)
    stored = json.loads((tmp_path / "t.json").read_text())
    assert stored["source"] == "a card"
    assert {key: TileConfig(**entry) for key, entry in stored["entries"].items()} == entries


def test_a_problem_counts_its_bytes_and_operations() -> None:
    """2 rows x 70 tokens x 2 heads x 64 x 4 bytes, keys and values; 20 queries seeing 11 to 30 keys."""
    cpu = torch.device("cpu")
    assert decode_problem(LAYOUT, rows=2, context=70, device=cpu).kv_bytes == 2 * 2 * 70 * 2 * 64 * 4
    assert prefill_problem(LAYOUT, tokens=20, context=10, device=cpu).flops == 4 * sum(range(11, 31)) * 4 * 64
