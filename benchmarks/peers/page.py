"""The comparison as Markdown and as a chart."""

from __future__ import annotations

import math
from collections.abc import Mapping

from benchmarks.bars import Bar, Panel, chart
from benchmarks.markdown import table
from benchmarks.peers.engines import BY_NAME
from benchmarks.peers.install import version
from benchmarks.peers.summary import FIGURES, Row

Entry = Row | str
"""A row of figures, or the reason why there is none."""


def markdown(entries: Mapping[str, Mapping[str, Entry]], about: str) -> str:
    """entries: by workload, then by engine name."""
    parts = [about]
    for workload, engines in entries.items():
        header = (
            f"{workload}",
            "wall s",
            FIGURES[workload].title,
            "weir is faster by",
            "TTFT p50 s",
            "ITL p99 ms",
            "peak RSS MiB",
            "first tokens as weir's",
            "rounds",
        )
        parts.append(table(header, [_cells(name, entry) for name, entry in engines.items()]))
    return "\n\n".join(parts)


def _cells(name: str, entry: Entry) -> list[str]:
    title = f"{BY_NAME[name].title} {version(BY_NAME[name])}" if name != "weir" else "weir"
    if isinstance(entry, str):
        return [title, f"not run: {entry}".replace("|", "\\|"), *[""] * 7]
    return [
        title,
        f"{entry.wall_s:.2f}",
        entry.rate.text(0),
        "" if name == "weir" else f"{entry.ratio.text(2)} x",
        f"{entry.ttft_p50_s:.2f}",
        "" if math.isnan(entry.itl_p99_s) else f"{entry.itl_p99_s * 1e3:.0f}",
        f"{entry.peak_rss_bytes / 2**20:.0f}",
        "" if entry.same_first_tokens is None else f"{entry.same_first_tokens:.0%}",
        str(entry.rounds),
    ]


def plot(entries: Mapping[str, Mapping[str, Entry]], title: str) -> str:
    """A panel for each workload; engines without figures are left to the table."""
    panels = [
        Panel(
            f"{workload}: {FIGURES[workload].title}",
            [_bar(name, entry) for name, entry in engines.items() if isinstance(entry, Row)],
        )
        for workload, engines in entries.items()
    ]
    return chart(title, panels)


def _bar(name: str, row: Row) -> Bar:
    text = f"{row.rate.median:.0f}" if name == "weir" else f"{row.rate.median:.0f} (1/{row.ratio.median:.2f})"
    return Bar(BY_NAME[name].title, row.rate.median, text, row.rate.low, row.rate.high, lead=name == "weir")
