"""Where the time of a workload goes on a CPU: seconds by phase of the fused step, decode steps and mixed steps apart.

    python -m benchmarks.phases [--workload mixed64] [--write docs/performance.md]

The rate of the products is that of all weights for all tokens, beside the best rate of a product that stays in the
cache (`kernels_cpu.peak_flops`), measured in the same run.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from weir.bench.in_process import warm_up
from weir.engine.load import load_engine
from weir.models.cpu_decoder import CpuDecoder
from weir.models.spec import ModelSpec
from weir_kernels.cpu import CpuKvCache, phase_clock
from weir_kernels.cpu.library import PHASES
from weir_kernels.cpu.threads import compute_threads
from weir_kernels.ragged import RaggedBatch

from benchmarks.cost import CostModel
from benchmarks.drive import drive
from benchmarks.kernels_cpu import LINEAR_PHASES, peak_flops
from benchmarks.markdown import replace_between, table
from benchmarks.suite import settings
from benchmarks.workloads import NAMES, workload


class Sums:
    """Steps of one kind."""

    def __init__(self) -> None:
        self.clock = phase_clock()
        self.steps = self.tokens = self.logit_rows = 0
        self.wall_s = 0.0

    def seconds(self, *phases: str) -> float:
        """Of all steps."""
        return sum(self.clock[PHASES.index(phase)] for phase in phases)


@contextmanager
def clocked() -> Iterator[dict[str, Sums]]:
    """Every greedy step of a CpuDecoder that is made while this lasts is summed up, by kind of step."""
    sums = {"decode": Sums(), "mixed": Sums()}
    plain = CpuDecoder.greedy

    def greedy(self: CpuDecoder, batch: RaggedBatch, kv: CpuKvCache) -> torch.Tensor:
        of = sums["decode" if batch.max_query_len == 1 else "mixed"]
        began = time.perf_counter()
        ids = plain(self, batch, kv, of.clock)
        of.wall_s += time.perf_counter() - began
        of.steps += 1
        of.tokens += len(batch.token_ids)
        of.logit_rows += len(batch.logit_rows)
        return ids

    CpuDecoder.greedy = greedy  # type: ignore[method-assign,assignment]
    try:
        yield sums
    finally:
        CpuDecoder.greedy = plain  # type: ignore[method-assign]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=Path("models/smollm2-135m-instruct"))
    parser.add_argument("--workload", choices=NAMES, default="mixed64")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="replace the table in this Markdown page")
    args = parser.parse_args()
    spec = ModelSpec.from_folder(args.model)
    work = workload(args.workload, spec.vocab_size)
    with clocked() as sums:
        core = load_engine(settings(args.model))
        warm_up(core, work)
        sums.update(decode=Sums(), mixed=Sums())
        wall_s = drive(core, work).wall_s
    peak = peak_flops(compute_threads())
    host_s = wall_s - sum(of.wall_s for of in sums.values())
    text = (
        f"{args.model.name}, {core.info.kernels}, {work.name} in {wall_s:.2f} s, of which {host_s:.2f} s outside the "
        f"fused step. Peak of a product: {peak / 1e9:.0f} GFLOP/s.\n\n"
        + table(
            ("steps", "count", "tokens", "s", "products", "of peak", "lm_head", "of peak", "attention", "other phases"),
            [_cells(kind, of, CostModel(spec), peak) for kind, of in sums.items() if of.steps],
        )
    )
    print(text)
    if args.write:
        replace_between(args.write, "phases", text)


def _cells(kind: str, of: Sums, cost: CostModel, peak: float) -> list[str]:
    products_s, head_s = of.seconds(*LINEAR_PHASES), of.seconds("lm_head")
    attention_s = of.seconds("attention")
    return [
        kind,
        str(of.steps),
        str(of.tokens),
        f"{of.wall_s:.2f}",
        f"{products_s:.2f}",
        f"{cost.product_flops(of.tokens, of.logit_rows) / products_s / peak:.0%}",
        f"{head_s:.2f}",
        f"{cost.lm_head_flops(of.logit_rows) / head_s / peak:.0%}",
        f"{attention_s:.2f}",
        f"{of.wall_s - products_s - head_s - attention_s:.2f}",
    ]


if __name__ == "__main__":
    main()
