"""From the times at which tokens came to the figures that are reported."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from weir.bench.workload import Workload


@dataclass(slots=True)
class RequestTimes:
    """One request: when it was sent, and when each message with new tokens came (seconds, one clock)."""

    sent: float
    token_times: list[float] = field(default_factory=list)
    tokens: int = 0
    # Name of the error that ended it; None while it is whole.
    failed: str | None = None

    def add(self, now: float, count: int) -> None:
        """`count` tokens came at `now`."""
        self.token_times.append(now)
        self.tokens += count


@dataclass(frozen=True, slots=True)
class EngineCounts:
    """What the engine did in the run. Tokens computed beyond `needed` would be padding or recomputation.

    `tokens_needed` is None when requests failed: how much of them was computed before is not known.
    """

    steps: int
    tokens_computed: int
    tokens_needed: int | None
    peak_kv_tokens: int
    kv_total_tokens: int
    phases_s: dict[str, float] = field(default_factory=dict)

    @property
    def padding_tokens(self) -> int | None:
        """Tokens computed that belong to no request; None when that is not known."""
        return None if self.tokens_needed is None else self.tokens_computed - self.tokens_needed

    @property
    def mean_batch_tokens(self) -> float:
        """Tokens computed in a mean step."""
        return self.tokens_computed / self.steps if self.steps else 0.0


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Seconds."""

    p50: float
    p90: float
    p99: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Percentiles:
        """Nearest-rank percentiles; NaN without values."""
        ordered = sorted(values)

        def rank(share: float) -> float:
            return ordered[math.ceil(share * len(ordered)) - 1] if ordered else math.nan

        return cls(rank(0.5), rank(0.9), rank(0.99))


@dataclass(frozen=True, slots=True)
class Report:
    """The result of one run."""

    workload: str
    mode: str
    requests: int
    prompt_tokens: int
    output_tokens: int
    wall_s: float
    ttft_s: Percentiles
    itl_s: Percentiles
    e2e_s: Percentiles
    engine: EngineCounts
    # How many requests ended with which error. They count in no other figure but the output tokens that did come.
    failed: dict[str, int] = field(default_factory=dict)

    @property
    def output_tokens_per_s(self) -> float:
        """Output tokens a second of the whole run."""
        return self.output_tokens / self.wall_s

    @property
    def total_tokens_per_s(self) -> float:
        """Prompt and output tokens a second of the whole run."""
        return (self.prompt_tokens + self.output_tokens) / self.wall_s

    def to_json(self) -> dict[str, Any]:
        """All figures, for a file; what there is no figure of is None."""
        figures = asdict(self) | {
            "output_tokens_per_s": self.output_tokens_per_s,
            "total_tokens_per_s": self.total_tokens_per_s,
            "padding_tokens": self.engine.padding_tokens,
            "mean_batch_tokens": self.engine.mean_batch_tokens,
        }
        for name in ("ttft_s", "itl_s", "e2e_s"):
            figures[name] = {rank: None if math.isnan(value) else value for rank, value in figures[name].items()}
        return figures

    def to_text(self) -> str:
        """The figures as a table for people."""

        def times(p: Percentiles) -> str:
            if math.isnan(p.p50):
                return "none"
            return f"{p.p50 * 1e3:.1f} / {p.p90 * 1e3:.1f} / {p.p99 * 1e3:.1f} ms"

        engine = self.engine
        rows = [
            ("workload", f"{self.workload}, {self.mode}: {self.requests} requests"),
            ("tokens", f"{self.prompt_tokens} prompt, {self.output_tokens} output"),
            ("wall", f"{self.wall_s:.2f} s"),
            ("output rate", f"{self.output_tokens_per_s:.0f} tokens/s"),
            ("total rate", f"{self.total_tokens_per_s:.0f} tokens/s"),
            ("TTFT p50/p90/p99", times(self.ttft_s)),
            ("ITL p50/p90/p99", times(self.itl_s)),
            ("end to end p50/p90/p99", times(self.e2e_s)),
            ("steps", f"{engine.steps}, mean batch {engine.mean_batch_tokens:.1f} tokens"),
            ("padding tokens", "not known" if engine.padding_tokens is None else str(engine.padding_tokens)),
            ("peak KV use", f"{engine.peak_kv_tokens} of {engine.kv_total_tokens} tokens"),
        ]
        if engine.phases_s:
            whole = sum(engine.phases_s.values())
            shares = ", ".join(f"{name} {100 * s / whole:.1f} %" for name, s in engine.phases_s.items())
            rows.append(("step time", shares))
        if self.failed:
            rows.append(("failed", ", ".join(f"{count} {name}" for name, count in self.failed.items())))
        return "\n".join(f"{name:<24}{value}" for name, value in rows)


def make_report(
    workload: Workload, mode: str, times: Sequence[RequestTimes], wall_s: float, engine: EngineCounts
) -> Report:
    """Sum up a run. ITL is the time between messages, spread over the tokens that came together."""
    whole = [t for t in times if t.failed is None and t.token_times]
    gaps = [b - a for t in whole for a, b in zip(t.token_times, t.token_times[1:], strict=False)]
    answered = (item for item, t in zip(workload.items, times, strict=True) if t.failed is None)
    return Report(
        workload=workload.name,
        mode=mode,
        requests=len(times),
        prompt_tokens=sum(len(item.prompt_token_ids) for item in answered),
        output_tokens=sum(t.tokens for t in times),
        wall_s=wall_s,
        ttft_s=Percentiles.of([t.token_times[0] - t.sent for t in whole]),
        itl_s=Percentiles.of(gaps),
        e2e_s=Percentiles.of([t.token_times[-1] - t.sent for t in whole]),
        engine=engine,
        failed=dict(Counter(t.failed for t in times if t.failed is not None)),
    )
