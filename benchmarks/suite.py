"""weir's own figures on this machine, each beside the limit that the machine sets.

    python -m benchmarks.suite [--json OUT] [--write docs/performance.md]

Throughput: mixed64 (64 requests at once, 10,810 prompt and 5,776 output tokens) in process and over gRPC, one stream,
decoding 16 streams of 4,096 tokens and more, computing 8 prompts of 2,048 tokens. Latency: mixed64 in open loops, at
shares of the rate of requests that the first run reached. The limit of a run is the sum of its steps' rooflines: the
larger of counted FLOPs over measured FLOP/s and counted bytes over measured bytes a second (`cost`, `machine`). An open
loop's share of the limit is of its time in steps.
Loading, the compilation of kernels and a short warm-up are not in the figures; the prefix cache is off.
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path

import uvloop
from weir.bench.in_process import warm_up
from weir.bench.over_grpc import run_over_grpc
from weir.bench.report import Percentiles
from weir.bench.workload import Workload
from weir.config import EngineSettings, ModelSettings, Settings
from weir.engine.core import EngineCore
from weir.engine.load import load_engine
from weir.models.spec import ModelSpec

from benchmarks.cost import CostModel
from benchmarks.drive import Trace, drive
from benchmarks.figures import output_rate, prefill_rate
from benchmarks.local_server import serving
from benchmarks.machine import Peaks, measure_peaks
from benchmarks.markdown import replace_between, table
from benchmarks.workloads import NAMES, cut, workload

LOADS = (0.3, 0.6, 0.9)
KV_MEMORY = 2 * 2**30


@dataclass(frozen=True, slots=True)
class Line:
    """One figure. least_s: the roofline of its steps; None over gRPC, whose limit is the run in process."""

    name: str
    figure: str
    rate: float
    wall_s: float
    least_s: float | None
    share_of_limit: float
    ttft_s: Percentiles
    itl_s: Percentiles
    padding_tokens: int
    host_share: float | None


def main() -> None:
    """Measure, print, and write what was asked for."""
    args = _arguments()
    spec = ModelSpec.from_folder(args.model)
    works = {name: workload(name, spec.vocab_size) for name in args.workloads}
    if args.cut:
        works = {name: cut(work, *args.cut) for name, work in works.items()}
    core = load_engine(settings(args.model))
    peaks = measure_peaks()
    traces = {name: _measure(core, work) for name, work in works.items()}
    mixed = works.get("mixed64")
    if mixed is not None and not args.no_open_loop:
        reached = len(mixed.items) / traces["mixed64"].wall_s
        for share in LOADS:
            rate = share * reached
            traces[f"mixed64 at {rate:.1f} requests/s"] = drive(core, mixed, rate)
    peaks = peaks.best_of(measure_peaks())
    cost = CostModel(spec)
    lines = [_line(name, trace, cost, peaks) for name, trace in traces.items()]
    kernels = core.info.kernels
    if mixed is not None and not args.no_grpc:
        lines.insert(1, _over_grpc(args.model, mixed, core, args.rounds))
    text = f"{args.model.name}, {kernels}. This machine: {peaks}.\n\n{markdown(lines)}"
    print(text)
    if args.json:
        figures = {"peaks": asdict(peaks), "kernels": kernels, "lines": [asdict(line) for line in lines]}
        args.json.write_text(json.dumps(figures, indent=2) + "\n")
    if args.write:
        replace_between(args.write, "suite", text)


def settings(model: Path) -> Settings:
    """Of all runs in process."""
    return Settings(
        model=ModelSettings(model=str(model), dtype="bfloat16", device="cpu"),
        engine=EngineSettings(kv_memory_bytes=KV_MEMORY, prefix_cache=False),
    )


def _measure(core: EngineCore, work: Workload) -> Trace:
    warm_up(core, work)
    return drive(core, work)


def _line(name: str, trace: Trace, cost: CostModel, peaks: Peaks) -> Line:
    part, tokens_s = trace, trace.wall_s
    if trace.work.name in ("one stream", "long decode"):
        part = trace.pure_decode()
        figure, rate = "decode tokens/s", part.computed_tokens / part.wall_s
    elif trace.work.name == "prefill":
        figure, rate = "prompt tokens/s", prefill_rate(trace.work.prompt_tokens, tokens_s)
    else:
        figure, rate = "output tokens/s", output_rate([times.token_times for times in trace.times], tokens_s)
    least_s = part.least_s(cost, peaks)
    phases = [record.phases for record in part.records]
    device_s = sum(phase.device_s for phase in phases)
    host_s = sum(phase.plan_s + phase.launch_s + phase.collect_s + phase.emit_s for phase in phases)
    return Line(
        name,
        figure,
        rate,
        part.wall_s,
        least_s,
        least_s / (part.wall_s if name in NAMES else part.busy_s),
        trace.ttft_s,
        trace.itl_s,
        trace.padding_tokens,
        host_s / (host_s + device_s),
    )


def _over_grpc(model: Path, work: Workload, core: EngineCore, rounds: int) -> Line:
    """The run of the median rate among `rounds`, and the median of its share of the run in process beside each."""
    pairs = []
    with serving(model, "--no-prefix-cache", "--kv-memory", str(KV_MEMORY), "--dtype", "bfloat16") as target:
        uvloop.run(run_over_grpc(target, cut(work, 8, 4)))
        for _ in range(rounds):
            pairs.append((drive(core, work).wall_s, uvloop.run(run_over_grpc(target, work))))
    report = sorted((report for _, report in pairs), key=lambda report: report.wall_s)[rounds // 2]
    return Line(
        f"{work.name} over gRPC",
        "output tokens/s",
        report.output_tokens_per_s,
        report.wall_s,
        None,
        statistics.median(in_process_s / report.wall_s for in_process_s, report in pairs),
        report.ttft_s,
        report.itl_s,
        report.engine.padding_tokens,
        None,
    )


def markdown(lines: list[Line]) -> str:
    """The lines as a table."""
    header = (
        *("workload", "figure", "rate", "wall s", "limit s", "of the limit", "TTFT p50 / p99 ms", "ITL p50 / p99 ms"),
        *("host", "padding tokens"),
    )
    return table(header, [_cells(line) for line in lines])


def _cells(line: Line) -> list[str]:
    in_process = line.least_s is None
    return [
        line.name,
        line.figure,
        f"{line.rate:.0f}",
        f"{line.wall_s:.2f}",
        "" if line.least_s is None else f"{line.least_s:.2f}",
        f"{line.share_of_limit:.0%}" + (" of in process" if in_process else ""),
        _times(line.ttft_s),
        "" if line.itl_s.p50 != line.itl_s.p50 else _times(line.itl_s),
        "" if line.host_share is None else f"{line.host_share:.1%}",
        str(line.padding_tokens),
    ]


def _times(seconds: Percentiles) -> str:
    return f"{seconds.p50 * 1e3:.1f} / {seconds.p99 * 1e3:.1f}"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=Path("models/smollm2-135m-instruct"))
    parser.add_argument("--workloads", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--rounds", type=int, default=3, help="runs over gRPC, each beside one in process")
    parser.add_argument("--no-grpc", action="store_true", help="leave out the run over gRPC")
    parser.add_argument("--no-open-loop", action="store_true", help="leave out the open loops")
    parser.add_argument("--cut", type=int, nargs=2, metavar=("REQUESTS", "TOKENS"), help="only a part, to try it out")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write all figures to this file")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="replace the table in this Markdown page")
    return parser.parse_args()


if __name__ == "__main__":
    main()
