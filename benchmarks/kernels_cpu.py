"""Where the time of a fused CPU step goes: ms by phase, and the rates beside the machine's own.

    python benchmarks/kernels_cpu.py [--model FOLDER] [--threads N] [--repeat N] [--dummy]

Decode steps at several batch sizes with 300 tokens of context, and prefill steps of 512 tokens. Figures are minima over
the repeats. Peaks are measured in the same run: reading memory, and multiplying a matrix that stays in the cache.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from weir.models.cpu_decoder import CpuDecoder
from weir.models.loader import dummy_weights, load_weights
from weir.models.spec import ModelSpec
from weir_kernels.cpu import CpuKvCache, CpuModel, CpuModelShape, compute_threads, phase_clock
from weir_kernels.cpu.library import PHASES
from weir_kernels.ragged import RaggedBatch

BLOCK_SIZE = 32
LINEAR_PHASES = ("qkv", "output", "gate_up", "down")


@dataclass(frozen=True, slots=True)
class Case:
    """`sequences` sequences with `context` tokens in the cache, of which each computes `chunk` more."""

    name: str
    sequences: int
    context: int
    chunk: int

    @property
    def tokens(self) -> int:
        return self.sequences * self.chunk


CASES = (
    Case("decode 1 x 300", 1, 300, 1),
    Case("decode 4 x 300", 4, 300, 1),
    Case("decode 16 x 300", 16, 300, 1),
    Case("decode 64 x 300", 64, 300, 1),
    Case("decode 1 x 4096", 1, 4096, 1),
    Case("prefill 512", 1, 0, 512),
    Case("prefill 512 at 1536", 1, 1536, 512),
)


def make_batch(case: Case, vocab_size: int) -> RaggedBatch:
    """Random tokens; logits wanted for the last token of each sequence."""
    blocks = -(-(case.context + case.chunk) // BLOCK_SIZE)
    tables = torch.randperm(case.sequences * blocks).view(case.sequences, blocks).add(1).to(torch.int32)
    positions = torch.arange(case.context, case.context + case.chunk).repeat(case.sequences)
    rows = torch.arange(case.sequences).repeat_interleave(case.chunk)
    slots = tables[rows, positions // BLOCK_SIZE].long() * BLOCK_SIZE + positions % BLOCK_SIZE
    bounds = torch.arange(case.sequences + 1, dtype=torch.int32) * case.chunk
    return RaggedBatch(
        token_ids=torch.randint(vocab_size, (case.tokens,)),
        positions=positions,
        slot_mapping=slots,
        cu_seqlens=bounds,
        seq_lens=torch.full((case.sequences,), case.context + case.chunk, dtype=torch.int32),
        block_tables=tables,
        logit_rows=bounds[1:].long() - 1,
        num_decodes=case.sequences if case.chunk == 1 else 0,
        max_query_len=case.chunk,
        max_seq_len=case.context + case.chunk,
    )


def best_of(repeat: int, run: Callable[[], float]) -> float:
    """Smallest of the seconds that `run` returns."""
    return min(run() for _ in range(repeat))


def wall(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def peak_flops(threads: int) -> float:
    """FLOP/s of a product whose operands stay in the cache: the lm_head of a one-layer model, 480 rows."""
    shape = CpuModelShape(1, 256, 1, 1, 16, 16, 8192, 1e-5)
    model = CpuModel(shape, threads)
    model.set_tables(torch.zeros(512, 8), torch.zeros(512, 8), None)
    batch = make_batch(Case("", 480, 0, 1), shape.vocab_size)
    kv = model.allocate_kv(480, BLOCK_SIZE)

    def run() -> float:
        clock = phase_clock()
        model.greedy(batch, kv, clock)
        return clock[PHASES.index("lm_head")]

    return 2.0 * 480 * shape.hidden_size * shape.vocab_size / best_of(8, run)


def peak_read_bytes_per_s() -> float:
    """Bytes a second of summing 256 MB with all threads."""
    data = torch.ones(64 << 20)
    return data.nbytes / best_of(5, lambda: wall(data.sum))


def measure(decoder: CpuDecoder, case: Case, kv: CpuKvCache, repeat: int) -> tuple[float, dict[str, float]]:
    """(seconds of the fastest step, its seconds by phase)."""
    batch = make_batch(case, decoder.spec.vocab_size)
    fastest: tuple[float, dict[str, float]] = (float("inf"), {})
    for _ in range(repeat + 1):
        clock = phase_clock()
        seconds = wall(lambda: decoder.greedy(batch, kv, clock))  # noqa: B023  # called at once
        if seconds < fastest[0]:
            fastest = (seconds, dict(zip(PHASES, clock, strict=True)))
    return fastest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=Path("models/smollm2-135m-instruct"))
    parser.add_argument("--dummy", action="store_true", help="random weights of the config's shapes")
    parser.add_argument("--threads", type=int, default=compute_threads())
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--isa", help="default: the best of this machine")
    args = parser.parse_args()

    spec = ModelSpec.from_folder(args.model)
    cpu = torch.device("cpu")
    load = dummy_weights if args.dummy else lambda *rest: load_weights(args.model, *rest)
    decoder = CpuDecoder(spec, load(spec, torch.bfloat16, cpu), args.threads, args.isa)
    flops, reading = peak_flops(args.threads), peak_read_bytes_per_s()
    print(f"{decoder.kernels}, {args.threads} threads, peak {flops / 1e9:.0f} GFLOP/s, read {reading / 1e9:.0f} GB/s")

    heads = spec.num_heads + 2 * spec.num_kv_heads
    per_layer = (
        spec.hidden_size * (heads + spec.num_heads) * spec.head_dim + 3 * spec.hidden_size * spec.intermediate_size
    )
    linear = spec.num_layers * per_layer
    head = spec.vocab_size * spec.hidden_size
    blocks = max(case.sequences * -(-(case.context + case.chunk) // BLOCK_SIZE) for case in CASES)
    kv = decoder.allocate_kv(blocks, BLOCK_SIZE)
    print(f"{'case':20}{'step ms':>9}" + "".join(f"{phase:>10}" for phase in PHASES) + f"{'host':>8}   rates")
    for case in CASES:
        seconds, phases = measure(decoder, case, kv, args.repeat)
        host = seconds - sum(phases.values())
        linear_s = sum(phases[phase] for phase in LINEAR_PHASES)
        context = case.context + case.chunk
        kv_bytes = case.sequences * context * spec.kv_bytes_per_token(2)
        # The last layer computes its output and MLP for the rows that want logits only; counted as if all did.
        achieved = 2.0 * case.tokens * linear / linear_s
        moved = (2.0 * (linear + head) + kv_bytes) / seconds
        print(
            f"{case.name:20}{seconds * 1e3:9.2f}"
            + "".join(f"{phases[phase] * 1e3:10.2f}" for phase in PHASES)
            + f"{host * 1e3:8.2f}   linears {achieved / 1e9:.0f} GFLOP/s ({achieved / flops:.0%}), "
            + f"attention {kv_bytes / phases['attention'] / 1e9:.0f} GB/s, "
            + f"step {moved / 1e9:.0f} GB/s ({moved / reading:.0%}), {case.tokens / seconds:.0f} tok/s"
        )


if __name__ == "__main__":
    main()
