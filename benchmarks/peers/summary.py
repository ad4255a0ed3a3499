"""From the runs of all rounds to ratios of medians, with the spread of the rounds."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from weir.bench.report import Percentiles
from weir.bench.workload import Workload

from benchmarks.figures import decode_rate, output_rate, prefill_rate
from benchmarks.peers.process import Measured

_MANY = 16

Runs = Mapping[int, Measured]
"""What an engine made of one workload, by round."""


@dataclass(frozen=True, slots=True)
class Figure:
    """The rate that a workload is about."""

    title: str
    of: Callable[[Measured, Workload], float]


_OUTPUT = Figure("output tokens/s", lambda run, work: output_rate(run.result.token_s, run.result.wall_s))
_DECODE = Figure("decode tokens/s", lambda run, work: decode_rate(run.result.token_s))
_PREFILL = Figure("prompt tokens/s", lambda run, work: prefill_rate(work.prompt_tokens, run.result.wall_s))
FIGURES: Mapping[str, Figure] = {
    "mixed64": _OUTPUT,
    "one stream": _DECODE,
    "long decode": _DECODE,
    "prefill": _PREFILL,
}


@dataclass(frozen=True, slots=True)
class Spread:
    """A median and the extremes beside it."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Raises statistics.StatisticsError without values."""
        return cls(statistics.median(values), min(values), max(values))

    def text(self, places: int) -> str:
        """`median (low to high)`, the extremes only when they differ."""
        middle = f"{self.median:.{places}f}"
        return middle if self.low == self.high else f"{middle} ({self.low:.{places}f} to {self.high:.{places}f})"


@dataclass(frozen=True, slots=True)
class Row:
    """One engine on one workload.

    rate: of all rounds. ratio: weir's median rate over this engine's in the same rounds, low and high the extremes of
    the rounds. TTFT and ITL: medians of the rounds. same_first_tokens: share of requests whose first token is weir's,
    a check that all compute the same model (bf16 sums differ in order, so close calls may); None for few requests.
    """

    rounds: int
    wall_s: float
    rate: Spread
    ratio: Spread
    ttft_p50_s: float
    itl_p99_s: float
    load_s: float
    peak_rss_bytes: int
    same_first_tokens: float | None


def summarise(work: Workload, runs: Runs, weir: Runs) -> Row:
    """The row of an engine with at least one run, beside weir's runs of the same workload."""
    figure = FIGURES[work.name].of
    rates = {number: figure(run, work) for number, run in runs.items()}
    paired = [number for number in runs if number in weir]
    lead = {number: figure(weir[number], work) for number in paired}
    by_round = [lead[number] / rates[number] for number in paired]
    ratio = statistics.median(lead.values()) / statistics.median(rates[number] for number in paired)
    results = [run.result for run in runs.values()]
    return Row(
        rounds=len(runs),
        wall_s=statistics.median(result.wall_s for result in results),
        rate=Spread.of(list(rates.values())),
        ratio=Spread(ratio, min(by_round), max(by_round)),
        ttft_p50_s=statistics.median(Percentiles.of([t[0] for t in r.token_s]).p50 for r in results),
        itl_p99_s=statistics.median(Percentiles.of(_gaps(r.token_s)).p99 for r in results),
        load_s=statistics.median(result.load_s for result in results),
        peak_rss_bytes=max(run.peak_rss_bytes for run in runs.values()),
        same_first_tokens=_agreement(weir[paired[0]], runs[paired[0]]),
    )


def _agreement(weir: Measured, run: Measured) -> float | None:
    ours, theirs = weir.result.token_ids, run.result.token_ids
    if len(ours) < _MANY:
        return None
    return sum(a[0] == b[0] for a, b in zip(ours, theirs, strict=True)) / len(ours)


def _gaps(token_s: Sequence[Sequence[float]]) -> list[float]:
    return [b - a for times in token_s for a, b in itertools.pairwise(times)]
