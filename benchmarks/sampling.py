"""What sampling costs in a decode step: each kind of request against greedy and against torch's own arg-max.

    python benchmarks/sampling.py --rows 64 --vocab 49152 --threads 2

"model-like" logits fall with the rank as a language model's do; "flat" ones are those of random weights, where top_p
keeps most of the vocabulary: the worst case. The last column is the time beside a decode step of --step-ms.
On a busy machine, --threads 1 --cpu-time leaves out what other processes took.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from weir.engine.request import SamplingParams
from weir.engine.sampler import Sampler, SampleRow
from weir.engine.sampling_state import SamplingState

GREEDY = {"temperature": 0.0}
MIX: list[dict[str, float]] = [
    {"temperature": 0.8},
    {"top_k": 50},
    {"temperature": 0.7, "top_p": 0.9},
    {"min_p": 0.05},
    {"temperature": 0.6, "top_k": 20, "top_p": 0.95},
    GREEDY,
    {"top_p": 0.95, "repetition_penalty": 1.1},
    {"temperature": 1.2, "min_p": 0.1, "frequency_penalty": 0.3},
]
CASES: dict[str, list[dict[str, float]]] = {
    "greedy": [GREEDY],
    "greedy, all penalties": [{**GREEDY, "repetition_penalty": 1.1, "presence_penalty": 0.1, "frequency_penalty": 0.1}],
    "greedy, 5 logprobs": [{**GREEDY, "logprobs": 5}],
    "temperature": [{"temperature": 0.8}],
    "top_k 50": [{"top_k": 50}],
    "top_k 1000": [{"top_k": 1000}],
    "top_p .95": [{"top_p": 0.95}],
    "min_p .05": [{"min_p": 0.05}],
    "top_k 50, top_p .9, min_p .02": [{"top_k": 50, "top_p": 0.9, "min_p": 0.02}],
    "a mix of eight kinds": MIX,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--vocab", type=int, default=49_152)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--context", type=int, default=500, help="tokens that penalties look back on")
    parser.add_argument("--step-ms", type=float, default=32.0, help="a decode step without sampling")
    parser.add_argument("--cpu-time", action="store_true", help="CPU time of this thread instead of elapsed time")
    args = parser.parse_args()
    clock = time.thread_time if args.cpu_time else time.perf_counter
    torch.set_num_threads(args.threads)
    for name, logits in (("model-like", model_like(args.rows, args.vocab)), ("flat", flat(args.rows, args.vocab))):
        print(f"\n{name} logits, {args.rows} rows of {args.vocab}, {args.threads} threads")
        print(f"{'':32}{'median ms':>10}{'/ greedy':>10}{'/ arg-max':>10}{'of step':>10}")
        argmax = median_ms(lambda scratch: scratch.argmax(-1), logits, args.rounds, clock)
        greedy = None
        for case, kinds in CASES.items():
            rows = make_rows(kinds, args.rows, args.vocab, args.context)
            sampler = Sampler(args.vocab)
            cost = median_ms(lambda scratch, s=sampler, r=rows: s(scratch, r), logits, args.rounds, clock)  # type: ignore[misc]
            greedy = greedy or cost
            share = cost / args.step_ms
            print(f"{case:32}{cost:10.2f}{cost / greedy:10.1f}{cost / argmax:10.1f}{share:10.1%}")


def model_like(rows: int, vocab: int) -> torch.Tensor:
    """Logits that fall by 1.6 nats for each e-fold of the rank, in a random order, with noise."""
    generator = torch.Generator().manual_seed(0)
    falling = -1.6 * torch.arange(1, vocab + 1).float().log()
    noise = 0.5 * torch.randn(rows, vocab, generator=generator)
    return torch.stack([(falling + row)[torch.randperm(vocab, generator=generator)] for row in noise])


def flat(rows: int, vocab: int) -> torch.Tensor:
    """Nearly equal logits."""
    return 0.3 * torch.randn(rows, vocab, generator=torch.Generator().manual_seed(1))


def make_rows(kinds: list[dict[str, float]], rows: int, vocab: int, context: int) -> list[SampleRow]:
    """Rows of the kinds in turn, each with `context` tokens of prompt and output."""
    made = []
    for r in range(rows):
        params = SamplingParams(max_tokens=context, seed=r, **kinds[r % len(kinds)])  # type: ignore[arg-type]
        state = SamplingState(params, range(0, vocab, 2 * vocab // context), (0,), vocab)
        for token in range(context // 2):
            state.append((token * 37 + r) % vocab)
        made.append(SampleRow(state, context))
    return made


def median_ms(
    work: Callable[[torch.Tensor], object], logits: torch.Tensor, rounds: int, clock: Callable[[], float]
) -> float:
    """Median time of `work`, each time on its own copy of the logits."""
    times = []
    for _ in range(rounds + 2):
        scratch = logits.clone()
        start = clock()
        work(scratch)
        times.append(clock() - start)
    return 1000 * statistics.median(times[2:])


if __name__ == "__main__":
    main()
