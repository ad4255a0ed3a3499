"""Families as text. Two writers: a fast one for the default format, prometheus_client's for OpenMetrics.

An endpoint picker scrapes each 50 ms with no Accept header, so the default format writes precomputed line starts
(0.2 ms where the general writer of prometheus_client takes 3 ms). OpenMetrics, which Prometheus negotiates at its own
slower pace, carries exemplars and is left to the library; a test holds the two to the same samples.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate

from prometheus_client.core import Exemplar, Metric
from prometheus_client.registry import Collector

from weir.telemetry.series import Counter, Family, Gauge, Histogram, Instrument, Labels

TEXT_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _sample(name: str, labels: Labels) -> str:
    inside = ",".join(f'{key}="{_escape(value)}"' for key, value in labels)
    return f"{name}{{{inside}}} " if inside else f"{name} "


def _bucket_names(histogram: Histogram) -> list[str]:
    return [*(str(float(bound)) for bound in histogram.bounds), "+Inf"]


class TextWriter:
    """Writes families in the text format 0.0.4."""

    def __init__(self, families: Sequence[Family]) -> None:
        self._blocks = [self._prepare(family) for family in families]

    def _prepare(self, family: Family) -> tuple[str, list[tuple[tuple[str, ...], Instrument]]]:
        head = f"# HELP {family.name} {family.help}\n# TYPE {family.name} {family.type}\n"
        return head, [(self._starts(family.name, labels, one), one) for labels, one in family.series]

    def _starts(self, name: str, labels: Labels, instrument: Instrument) -> tuple[str, ...]:
        if not isinstance(instrument, Histogram):
            return (_sample(name, labels),)
        buckets = [_sample(f"{name}_bucket", (*labels, ("le", le))) for le in _bucket_names(instrument)]
        return (*buckets, _sample(f"{name}_sum", labels), _sample(f"{name}_count", labels))

    def write(self) -> str:
        """The text of all families now."""
        parts: list[str] = []
        for head, series in self._blocks:
            parts.append(head)
            for starts, instrument in series:
                if isinstance(instrument, Histogram):
                    rising = list(accumulate(instrument.counts))
                    values = (*rising, instrument.sum, rising[-1])
                    parts.extend([f"{start}{value}\n" for start, value in zip(starts, values, strict=True)])
                else:
                    value = instrument.value if isinstance(instrument, Counter) else instrument.read()
                    parts.append(f"{starts[0]}{value}\n")
        return "".join(parts)


class FamilyCollector(Collector):
    """Families as prometheus_client metrics, with exemplars."""

    def __init__(self, families: Sequence[Family]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        """One Metric for each family."""
        for family in self._families:
            name = family.name.removesuffix("_total") if family.type == "counter" else family.name
            metric = Metric(name, family.help, family.type)
            for labels, instrument in family.series:
                _add(metric, family.name, dict(labels), instrument)
            yield metric


def _add(metric: Metric, name: str, labels: dict[str, str], instrument: Instrument) -> None:
    if isinstance(instrument, Counter):
        metric.add_sample(name, labels, instrument.value)
    elif isinstance(instrument, Gauge):
        metric.add_sample(name, labels, instrument.read())
    else:
        rising = list(accumulate(instrument.counts))
        for le, value, seen in zip(_bucket_names(instrument), rising, instrument.exemplars, strict=True):
            exemplar = Exemplar({"trace_id": seen.trace_id}, seen.value, seen.unix_s) if seen is not None else None
            metric.add_sample(f"{name}_bucket", {**labels, "le": le}, value, exemplar=exemplar)
        metric.add_sample(f"{name}_count", labels, rising[-1])
        metric.add_sample(f"{name}_sum", labels, instrument.sum)
