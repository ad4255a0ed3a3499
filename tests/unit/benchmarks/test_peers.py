"""The comparison of engines: ratios worked out by hand, reasons kept, weights the same bits."""

from __future__ import annotations

import sys
from pathlib import Path

import gguf
import pytest
import torch
from weir.bench.workload import WorkItem, Workload

from benchmarks.markdown import replace_between
from benchmarks.peers.child import Result
from benchmarks.peers.engines import ENGINES, Engine
from benchmarks.peers.gguf_model import convert
from benchmarks.peers.install import PINS, PeerError, version
from benchmarks.peers.page import markdown
from benchmarks.peers.process import Measured, run_child
from benchmarks.peers.summary import summarise
from tests.unit.models.tiny import configs, make, save

WORK = Workload("mixed64", (WorkItem((1, 2), 2), WorkItem((3,), 2)))


def measured(wall_s: float, *, rss: int = 100) -> Measured:
    return Measured(Result("mixed64", wall_s, 1.0, [[0.5, 1.0], [1.5, 2.0]], [[7, 7], [8, 8]]), rss)


def test_ratio_is_of_medians_and_its_spread_is_of_the_rounds() -> None:
    weir = {0: measured(1.0), 1: measured(2.0), 2: measured(4.0)}
    peer = {0: measured(4.0), 1: measured(4.0), 2: measured(8.0)}
    row = summarise(WORK, peer, weir)
    # Four tokens: weir's rates are 4, 2 and 1 a second, the peer's 1, 1 and 0.5.
    assert (row.ratio.median, row.ratio.low, row.ratio.high) == (2.0, 2.0, 4.0)
    assert (row.rate.median, row.rate.low, row.rate.high) == (1.0, 0.5, 1.0)


def test_an_engine_that_ran_once_is_compared_with_the_same_round() -> None:
    row = summarise(WORK, {0: measured(4.0)}, {0: measured(1.0), 1: measured(2.0)})
    assert (row.ratio.median, row.rounds) == (4.0, 1)


def test_times_are_medians_and_memory_is_the_largest() -> None:
    row = summarise(WORK, {0: measured(4.0, rss=300), 1: measured(5.0, rss=200)}, {0: measured(1.0)})
    # First tokens at 0.5 and 1.5: the nearest rank to one half is the first; every gap is 0.5.
    assert (row.wall_s, row.ttft_p50_s, row.itl_p99_s, row.peak_rss_bytes) == (4.5, 0.5, 0.5, 300)


def test_an_engine_that_failed_is_listed_with_the_reason() -> None:
    weir = {0: measured(1.0)}
    text = markdown({"mixed64": {"weir": summarise(WORK, weir, weir), "vllm": "no wheel | for this machine"}}, "about")
    assert f"| vLLM (CPU) {version(ENGINES[2])} | not run: no wheel \\| for this machine |" in text


def test_a_runner_that_cannot_start_gives_its_reason() -> None:
    engine = Engine("none", "none", "run_nothing", None, "none")
    with pytest.raises(PeerError, match="No module named"):
        run_child(engine, Path(sys.executable), Path("model"), [Path("work.json")], 1, limit_s=60.0)


@pytest.mark.parametrize("engine", [engine for engine in ENGINES if engine.environment])
def test_every_peer_is_pinned_exactly(engine: Engine) -> None:
    lines = (PINS / f"{engine.environment}.txt").read_text().splitlines()
    assert version(engine)
    assert all("==" in line for line in lines if not line.startswith("#"))


def test_gguf_holds_the_same_bits_with_rotary_pairs_side_by_side(tmp_path: Path) -> None:
    model = make(configs()["smollm2"]).bfloat16()
    convert(save(model, tmp_path / "model"), tmp_path / "model.gguf")
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(tmp_path / "model.gguf").tensors}

    def bits(name: str) -> torch.Tensor:
        return torch.from_numpy(tensors[name].data.copy()).view(torch.bfloat16)

    layer = model.model.layers[1]
    assert torch.equal(bits("blk.1.ffn_down.weight"), layer.mlp.down_proj.weight)
    # Heads of 16: row 0 is followed by row 8, the other half of its pair, then by row 1.
    query = bits("blk.1.attn_q.weight")
    assert torch.equal(query[:4], layer.self_attn.q_proj.weight[[0, 8, 1, 9]])
    assert torch.equal(query[16], layer.self_attn.q_proj.weight[16])


def test_only_the_text_between_the_markers_is_replaced(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- x: begin -->\nold\n<!-- x: end -->\nafter\n")
    replace_between(page, "x", "new")
    assert page.read_text() == "before\n<!-- x: begin -->\nnew\n<!-- x: end -->\nafter\n"


def test_a_page_without_markers_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- x: begin -->\n")
    with pytest.raises(ValueError, match="no markers"):
        replace_between(page, "x", "new")
