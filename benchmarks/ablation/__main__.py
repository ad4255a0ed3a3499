"""What each technique is worth: the same decoder and the same requests, one technique more in every row.

    python -m benchmarks.ablation [--write docs/how-it-works.md] [--plot docs/images/ablation.svg]

The padded rows are made here, the last two are the engine. All batches have 8 rows and compute at most 256 tokens in a
step of chunks. Loading and a warm-up of 8 requests are not in the figures.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from weir.models.spec import ModelSpec

from benchmarks.ablation.rungs import Outcome, ladder, make_workload
from benchmarks.bars import Bar, Panel, chart
from benchmarks.markdown import replace_between, table
from benchmarks.workloads import cut


def main() -> None:
    """Measure every rung, print the table, and write what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="models/smollm2-135m-instruct")
    parser.add_argument("--cut", type=int, nargs=2, metavar=("REQUESTS", "TOKENS"), help="only a part, to try it out")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write all figures to this file")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="replace the table in this Markdown page")
    parser.add_argument("--plot", type=Path, metavar="SVG", help="write the chart to this file")
    args = parser.parse_args()
    work = make_workload(ModelSpec.from_folder(args.model).vocab_size)
    if args.cut:
        work = cut(work, *args.cut)
    outcomes: dict[str, Outcome] = {}
    for rung in ladder(args.model, work):
        runs = [rung.run() for _ in range(rung.repeats)]
        outcomes[rung.title] = min(runs, key=lambda run: run.wall_s)
        print(f"{rung.title:<34}{outcomes[rung.title].wall_s:8.2f} s", flush=True)
    text = f"{markdown(outcomes)}\n\n{same_tokens(outcomes)}"
    print(text)
    if args.json:
        args.json.write_text(json.dumps({name: asdict(one) for name, one in outcomes.items()}, indent=2) + "\n")
    if args.write:
        replace_between(args.write, "ablation", text)
    if args.plot:
        args.plot.write_text(plot(outcomes))


def markdown(outcomes: dict[str, Outcome]) -> str:
    """The rungs as a table."""
    header = (
        *("technique", "tokens computed", "of them again", "of them padding", "output tokens/s"),
        *("TTFT p50 ms", "ITL p50 ms", "ITL p99 ms"),
    )
    rows = [
        [
            title,
            f"{one.computed_tokens:,}",
            f"{one.again_tokens:,}",
            f"{one.padding_tokens:,}",
            f"{one.output_tokens / one.wall_s:.0f}",
            f"{one.ttft_s.p50 * 1e3:.0f}",
            f"{one.itl_s.p50 * 1e3:.1f}",
            f"{one.itl_s.p99 * 1e3:.1f}",
        ]
        for title, one in outcomes.items()
    ]
    return table(header, rows)


def same_tokens(outcomes: dict[str, Outcome]) -> str:
    """How many requests got the same tokens in every row of the table."""
    answers = [one.token_ids for one in outcomes.values()]
    same = sum(len(set(each)) == 1 for each in zip(*answers, strict=True))
    return f"{same} of {len(answers[0])} requests got exactly the same tokens in every row."


def plot(outcomes: dict[str, Outcome]) -> str:
    """Throughput and tail latency, technique by technique; without a cache latency would need a scale of its own."""
    first, *_, last = outcomes
    rates = {title: one.output_tokens / one.wall_s for title, one in outcomes.items()}
    tails = {title: one.itl_s.p99 * 1e3 for title, one in outcomes.items()}
    without = tails.pop(first)
    return chart(
        "What each technique is worth",
        [_panel("output tokens/s", rates, last), _panel(f"ITL p99, ms ({first}: {without:.0f})", tails, last)],
    )


def _panel(head: str, values: dict[str, float], lead: str) -> Panel:
    return Panel(head, [Bar(title, value, f"{value:.0f}", lead=title == lead) for title, value in values.items()])


if __name__ == "__main__":
    main()
