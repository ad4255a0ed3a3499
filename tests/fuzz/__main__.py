"""Damage what comes from outside, as often as asked, within bounds of memory and time: `make fuzz`.

    python -m tests.fuzz --inputs 100000 [--seed 1] [--only Templates] [--from 1234]

Each kind of input has a process of its own, so that a crash is found too. An input is its seed: `--only KIND --from N
--inputs 1` gives that of number N again.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from tests.fuzz.run import run_limited

# Of all inputs, the share of each kind; of the last two, each is sixteen calls or eight.
SHARES = {
    "Configs": 0.288,
    "Weights": 0.25,
    "Templates": 0.10,
    "Tokenizers": 0.10,
    "Requests": 0.25,
    "Metadata": 0.01,
    "Generations": 0.002,
}
_MOST_SHOWN = 20


def main() -> int:
    """Run, print a line for each kind, and what was found. 1 if anything was."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=list(SHARES))
    parser.add_argument("--from", dest="first", type=int, default=0)
    args = parser.parse_args()
    kinds = {args.only: 1.0} if args.only else SHARES
    with ThreadPoolExecutor(os.cpu_count()) as at_once:
        runs = [
            at_once.submit(_one_kind, kind, args.seed, args.first, max(1, round(args.inputs * share)))
            for kind, share in kinds.items()
        ]
        found = sum(run.result() for run in runs)
    print("nothing was found" if not found else f"{found} inputs ended as none may", flush=True)
    return 1 if found else 0


def _one_kind(kind: str, seed: int, first: int, count: int) -> int:
    """The number of findings."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    began = time.monotonic()
    # Not a daemon: those may start no processes, as the engine is one.
    process = context.Process(target=run_limited, args=(kind, seed, first, count, theirs))
    process.start()
    theirs.close()
    found, ends = 0, None
    try:
        while ends is None:
            got = ours.recv()
            if isinstance(got, dict):
                ends = got
            else:
                found += 1
                if found <= _MOST_SHOWN:
                    print(f"{kind} --seed {seed} --from {got[0]}:\n{got[1]}", file=sys.stderr, flush=True)
    except EOFError:
        found += 1
        print(f"the process of {kind} ended before its inputs did", file=sys.stderr)
    process.join()
    if process.exitcode:
        found += 1
    took_s = time.monotonic() - began
    print(f"{kind}: {count} inputs in {took_s:.0f} s: {ends}", flush=True)
    return found


if __name__ == "__main__":
    sys.exit(main())
