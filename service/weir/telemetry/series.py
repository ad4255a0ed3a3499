"""Counters, gauges and histograms as plain objects: cheap to add to, read only when scraped."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal


@dataclass(slots=True, eq=False)
class Counter:
    """A number that only grows."""

    value: float = 0

    def add(self, amount: float = 1) -> None:
        """Count `amount` more (>= 0)."""
        self.value += amount


@dataclass(frozen=True, slots=True, eq=False)
class Gauge:
    """A number that is read at the scrape."""

    read: Callable[[], float]


@dataclass(frozen=True, slots=True)
class TraceExemplar:
    """One observation of a bucket and the trace it came from."""

    trace_id: str
    value: float
    unix_s: float


class Histogram:
    """Counts of observations in buckets `value <= bound`, the last bucket unbounded, and their sum."""

    __slots__ = ("bounds", "counts", "exemplars", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        if list(bounds) != sorted(set(bounds)):
            raise ValueError(f"bucket bounds must rise: {bounds}")
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0
        self.exemplars: list[TraceExemplar | None] = [None] * (len(bounds) + 1)

    def observe(self, value: float, count: int = 1, trace_id: str | None = None) -> None:
        """Count `count` observations of `value`; the newest trace of each bucket becomes its exemplar."""
        bucket = bisect_left(self.bounds, value)
        self.counts[bucket] += count
        self.sum += value * count
        if trace_id is not None:
            self.exemplars[bucket] = TraceExemplar(trace_id, value, time.time())


Instrument = Counter | Gauge | Histogram
Labels = tuple[tuple[str, str], ...]


@dataclass(slots=True, eq=False)
class Family:
    """One metric: its exposed name (counters end in `_total`), help text, type, and one instrument per label set.

    The label sets are all there from the start, so every series exists, at 0, from the first scrape, and no client
    can add one.
    """

    name: str
    help: str
    type: Literal["counter", "gauge", "histogram"]
    series: list[tuple[Labels, Instrument]] = field(default_factory=list)

    def __post_init__(self) -> None:
        if (self.type == "counter") != (self.name.endswith("_total") and self.type != "histogram"):
            raise ValueError(f"{self.name}: a counter, and only a counter, ends in _total")


def counter(name: str, help_text: str, instrument: Counter, labels: Labels = ()) -> Family:
    """A counter with one series."""
    return Family(name, help_text, "counter", [(labels, instrument)])


def counters(name: str, help_text: str, label: str, by_value: dict[str, Counter], labels: Labels = ()) -> Family:
    """A counter with one series for each value of `label`."""
    return Family(name, help_text, "counter", [((*labels, (label, v)), c) for v, c in by_value.items()])


def gauge(name: str, help_text: str, read: Callable[[], float], labels: Labels = ()) -> Family:
    """A gauge with one series, read at the scrape."""
    return Family(name, help_text, "gauge", [(labels, Gauge(read))])


def histogram(name: str, help_text: str, instrument: Histogram, labels: Labels = ()) -> Family:
    """A histogram with one label set."""
    return Family(name, help_text, "histogram", [(labels, instrument)])


def histograms(name: str, help_text: str, label: str, by_value: dict[str, Histogram]) -> Family:
    """A histogram for each value of `label`."""
    return Family(name, help_text, "histogram", [(((label, v),), h) for v, h in by_value.items()])


def counter_set(values: Iterable[str]) -> dict[str, Counter]:
    """A counter for each of a closed set of label values."""
    return {value: Counter() for value in values}
