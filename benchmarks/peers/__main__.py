"""weir and its peers, in turn: the same weights, the same requests, one child process a run.

    python -m benchmarks.peers [--rounds 3] [--engines weir openvino ...] [--workloads mixed64 "one stream" ...]

Every round runs each engine once, so that drift of the machine meets all alike. Figures leave out the start of the
process, loading, and a warm-up of 16 requests with 8 tokens each. Peers are installed below .cache/peers on first use.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from weir.bench.workload import Workload
from weir.models.spec import ModelSpec
from weir_kernels.cpu.threads import compute_threads

from benchmarks import workloads
from benchmarks.machine import measure_peaks
from benchmarks.markdown import replace_between
from benchmarks.peers.engines import BY_NAME, ENGINES
from benchmarks.peers.install import CACHE, ROOT, PeerError, install, prepare
from benchmarks.peers.page import Entry, markdown, plot
from benchmarks.peers.process import Measured, run_child
from benchmarks.peers.summary import summarise


class Comparison:
    """The runs so far, and why the engines that have none failed."""

    def __init__(self, model: Path, works: list[Workload], threads: int, limit_s: float) -> None:
        self._model, self._works, self._threads, self._limit_s = model, works, threads, limit_s
        self._files = [CACHE / "workloads" / f"{work.name.replace(' ', '_')}.json" for work in works]
        for work, file in zip(works, self._files, strict=True):
            workloads.write_workload(work, file)
        self._ready: dict[str, tuple[Path, Path]] = {}
        self.runs: dict[str, dict[str, dict[int, Measured]]] = {}
        self.failures: dict[str, str] = {}

    def make_ready(self, names: list[str]) -> None:
        """Install and convert before anything is measured."""
        for name in names:
            try:
                python = install(BY_NAME[name])
                self._ready[name] = python, prepare(BY_NAME[name], python, self._model)
            except PeerError as error:
                self._fail(name, str(error))

    def run(self, name: str, number: int) -> None:
        """Run one engine in round `number`; an engine that failed once is not tried again."""
        if name in self.failures or (BY_NAME[name].once and number):
            return
        try:
            measured = run_child(BY_NAME[name], *self._ready[name], self._files, self._threads, self._limit_s)
        except PeerError as error:
            self._fail(name, str(error))
            return
        for work, one in zip(self._works, measured, strict=True):
            self.runs.setdefault(work.name, {}).setdefault(name, {})[number] = one
            print(f"round {number + 1}  {name:<16} {work.name:<12} {one.result.wall_s:8.2f} s", flush=True)

    def _fail(self, name: str, reason: str) -> None:
        self.failures[name] = reason
        print(f"{name} failed: {reason}", file=sys.stderr, flush=True)

    def entries(self, names: list[str]) -> dict[str, dict[str, Entry]]:
        """Rows by workload and engine, the reason in place of a row for an engine that never ran."""
        made: dict[str, dict[str, Entry]] = {}
        for work in self._works:
            runs = self.runs.get(work.name, {})
            weir = runs.get("weir", {})
            made[work.name] = {
                name: summarise(work, runs[name], weir)
                if name in runs and weir
                else self.failures.get(name, "weir has no run to compare with")
                for name in names
            }
        return made


def main() -> int:
    """Exit code 0 when weir and at least one peer ran."""
    args = _arguments()
    spec = ModelSpec.from_folder(args.model)
    works = [workloads.workload(name, spec.vocab_size) for name in args.workloads]
    if args.cut:
        works = [workloads.cut(work, *args.cut) for work in works]
    names = ["weir", *(name for name in args.engines if name != "weir")]
    comparison = Comparison(args.model.resolve(), works, args.threads, args.timeout)
    comparison.make_ready(names)
    peaks = measure_peaks()
    for number in range(args.rounds):
        for name in names:
            comparison.run(name, number)
    peaks = peaks.best_of(measure_peaks())
    entries = comparison.entries(names)
    rounds = "1 round" if args.rounds == 1 else f"{args.rounds} rounds in turn"
    about = f"{args.model.name}, bf16 weights, {args.threads} threads; {rounds}. This machine: {peaks}."
    text = markdown(entries, about)
    print(text)
    if args.json:
        args.json.write_text(json.dumps(_json(entries, comparison.failures), indent=2) + "\n")
    if args.write:
        replace_between(args.write, args.section, text)
    if args.plot:
        args.plot.write_text(plot(entries, "Rates on the same machine, same weights, same work"))
    return 0 if any(len(runs) > 1 and "weir" in runs for runs in comparison.runs.values()) else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=ROOT / "models" / "smollm2-135m-instruct")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--engines", nargs="+", choices=list(BY_NAME), default=[engine.name for engine in ENGINES])
    parser.add_argument("--workloads", nargs="+", choices=workloads.NAMES, default=["mixed64", "one stream"])
    parser.add_argument("--threads", type=int, default=compute_threads())
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds for one child process")
    parser.add_argument("--cut", type=int, nargs=2, metavar=("REQUESTS", "TOKENS"), help="only a part, to try it out")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="replace the table in this Markdown page")
    parser.add_argument("--section", default="peers", help="which of the page's tables")
    parser.add_argument("--plot", type=Path, metavar="SVG", help="write the chart to this file")
    return parser.parse_args()


def _json(entries: dict[str, dict[str, Entry]], failures: dict[str, str]) -> dict[str, object]:
    rows = {
        work: {name: entry if isinstance(entry, str) else asdict(entry) for name, entry in engines.items()}
        for work, engines in entries.items()
    }
    return {"workloads": rows, "failures": failures}


if __name__ == "__main__":
    sys.exit(main())
