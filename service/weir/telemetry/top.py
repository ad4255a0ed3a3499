"""The picture that `weir top` draws: the KV budget, the queue and the pace of one server, in plain ANSI.

Needs nothing but the standard library; numbers come from BudgetService and from a scrape of the metrics port.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

HISTORY = 120
_BARS = " ▁▂▃▄▅▆▇█"
_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

Key = tuple[str, tuple[tuple[str, str], ...]]


class Budget(Protocol):
    """What a server says of its KV pool and its queue."""

    @property
    def kv_total_tokens(self) -> int: ...
    @property
    def kv_free_tokens(self) -> int: ...
    @property
    def kv_used_tokens(self) -> int: ...
    @property
    def kv_cached_tokens(self) -> int: ...
    @property
    def kv_reserved_peak_tokens(self) -> int: ...
    @property
    def running_requests(self) -> int: ...
    @property
    def queued_requests(self) -> int: ...
    @property
    def queued_tokens(self) -> int: ...
    @property
    def estimated_wait_s(self) -> float: ...
    @property
    def step(self) -> int: ...


def parse_samples(text: str) -> dict[Key, float]:
    """Name and labels -> value, of a scrape in the text format."""
    samples: dict[Key, float] = {}
    for line in text.splitlines():
        match = _SAMPLE.match(line)
        if match is not None:
            name, labels, value = match.groups()
            samples[name, tuple(sorted(_LABEL.findall(labels or "")))] = float(value)
    return samples


@dataclass(frozen=True, slots=True)
class Pace:
    """Rates between two scrapes; None where nothing happened between them."""

    output_tokens_s: float
    prefill_tokens_s: float
    steps_s: float
    step_time_s: float | None
    time_to_first_token_s: float | None
    requests_s: float
    rejected: Mapping[str, int]


def pace(before: Mapping[Key, float], after: Mapping[Key, float], seconds: float) -> Pace:
    """What happened in `seconds` between two scrapes of the same process."""

    def grown(name: str) -> float:
        """Growth of a counter over all its series; 0 after a restart."""
        return max(0.0, sum(value - before.get(key, 0.0) for key, value in after.items() if key[0] == name))

    def mean(name: str) -> float | None:
        count = grown(f"{name}_count")
        return grown(f"{name}_sum") / count if count else None

    rejected: dict[str, int] = {}
    for key, value in after.items():
        labels = dict(key[1])
        if key[0] == "weir_admission_decisions_total" and labels["decision"] == "rejected":
            more = int(value - before.get(key, 0.0))
            if more > 0:
                rejected[labels["reason"]] = more
    return Pace(
        grown("weir_output_tokens_total") / seconds,
        grown("weir_prefill_tokens_total") / seconds,
        grown("weir_step_duration_seconds_count") / seconds,
        mean("weir_step_duration_seconds"),
        mean("weir_time_to_first_token_seconds"),
        grown("weir_requests_total") / seconds,
        rejected,
    )


@dataclass(slots=True)
class TopView:
    """Keeps a short history of one server and draws it."""

    target: str
    tokens: deque[float] = field(default_factory=lambda: deque(maxlen=HISTORY))
    step_times: deque[float] = field(default_factory=lambda: deque(maxlen=HISTORY))
    rejections: deque[str] = field(default_factory=lambda: deque(maxlen=5))

    def note(self, now: Pace, clock: str) -> None:
        """Add one interval to the history; `clock` is its time of day."""
        self.tokens.append(now.output_tokens_s)
        self.step_times.append(now.step_time_s or 0.0)
        for reason, count in sorted(now.rejected.items()):
            self.rejections.append(f"{clock}  {count:>5} × {reason}")

    def draw(self, budget: Budget, now: Pace | None, width: int, color: bool = True) -> str:
        """The whole view as lines of at most `width` columns. `now` None: the metrics port gives nothing."""
        paint = _Paint(color)
        room = max(20, width - 24)
        lines = [
            paint.bold(f"weir top  {self.target}") + paint.dim(f"   step {budget.step:,}"),
            "",
            f"{'KV budget':<12}{_kv_bar(budget, room, paint)} {_share(budget.kv_used_tokens, budget.kv_total_tokens)}",
            f"{'':<12}{budget.kv_used_tokens:,} used   {budget.kv_cached_tokens:,} cached   "
            f"{budget.kv_free_tokens:,} free   {budget.kv_reserved_peak_tokens:,} reserved peak   "
            f"{budget.kv_total_tokens:,} total",
            "",
            f"{'requests':<12}{budget.running_requests} running   {budget.queued_requests} waiting "
            f"({budget.queued_tokens:,} tokens)   new ones wait {budget.estimated_wait_s:.1f} s",
        ]
        if now is None:
            lines.append(paint.dim("no metrics: is the metrics port right? (--metrics)"))
            return "\n".join(_cut(line, width) for line in lines)
        step_time = "-" if now.step_time_s is None else f"{now.step_time_s * 1e3:.1f} ms"
        first_token = "-" if now.time_to_first_token_s is None else f"{now.time_to_first_token_s * 1e3:.0f} ms"
        lines += [
            f"{'tokens/s':<12}{_spark(self.tokens, room)} {now.output_tokens_s:,.0f}",
            f"{'step time':<12}{_spark(self.step_times, room)} {step_time}",
            f"{'':<12}{now.steps_s:.1f} steps/s   {now.prefill_tokens_s:,.0f} prefill tokens/s   "
            f"{now.requests_s:.1f} requests/s   TTFT {first_token}",
            "",
            f"{'rejected':<12}" + (self.rejections[-1] if self.rejections else paint.dim("none")),
            *(f"{'':<12}{line}" for line in list(self.rejections)[-2::-1]),
        ]
        return "\n".join(_cut(line, width) for line in lines)


def _kv_bar(budget: Budget, room: int, paint: _Paint) -> str:
    """Used, cached and free as one bar, with a mark where the reserved peak ends."""
    total = max(budget.kv_total_tokens, 1)
    used = round(room * budget.kv_used_tokens / total)
    cached = min(round(room * budget.kv_cached_tokens / total), room - used)
    cells = [paint.used("█")] * used + [paint.cached("▒")] * cached + [paint.dim("·")] * (room - used - cached)
    if budget.kv_reserved_peak_tokens:
        cells[min(round(room * budget.kv_reserved_peak_tokens / total), room) - 1] = paint.peak("┃")
    return "".join(cells)


def _spark(values: deque[float], room: int) -> str:
    shown = list(values)[-room:]
    top = max(shown, default=0.0)
    drawn = "".join(_BARS[round(8 * value / top)] if top else " " for value in shown)
    return drawn.rjust(room)


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:3.0f} %" if whole else "  - "


def _cut(line: str, width: int) -> str:
    """At most `width` visible columns, with colours ended."""
    out, seen = [], 0
    for piece in re.split(r"(\x1b\[[0-9;]*m)", line):
        if piece.startswith("\x1b"):
            out.append(piece)
        else:
            out.append(piece[: width - seen])
            seen += len(out[-1])
    return "".join(out)


@dataclass(frozen=True, slots=True)
class _Paint:
    on: bool

    def _wrap(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.on else text

    def bold(self, text: str) -> str:
        return self._wrap("1", text)

    def dim(self, text: str) -> str:
        return self._wrap("2", text)

    def used(self, text: str) -> str:
        return self._wrap("34", text)

    def cached(self, text: str) -> str:
        return self._wrap("36", text)

    def peak(self, text: str) -> str:
        return self._wrap("31", text)
