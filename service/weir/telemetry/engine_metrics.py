"""Metrics of the engine: every step counted, the budget read at the scrape."""

from __future__ import annotations

import time
from typing import Protocol

from weir.engine.records import BudgetSnapshot, EngineInfo, StepRecord
from weir.telemetry import buckets
from weir.telemetry.series import (
    Counter,
    Family,
    Histogram,
    counter,
    counter_set,
    counters,
    gauge,
    histogram,
    histograms,
)

PHASES = ("plan", "launch", "device", "collect", "emit")
STEP_KINDS = ("decode", "prefill", "mixed", "empty")
_NO_BUDGET = BudgetSnapshot(0, 0, 0, 0, 0, 0, 0, 0, 0.0, 0)


class Progress(Protocol):
    """Whether a step is running, and for how long (seconds)."""

    @property
    def busy(self) -> bool: ...

    @property
    def step_age_s(self) -> float: ...


class EngineView(Protocol):
    """What a scrape reads of the engine; both calls answer from memory."""

    def snapshot(self) -> BudgetSnapshot: ...

    def progress(self) -> Progress: ...


def step_kind(record: StepRecord) -> str:
    """Which work a step held: decode, prefill, mixed (both) or empty (neither)."""
    if record.decodes:
        return "mixed" if record.prefills else "decode"
    return "prefill" if record.prefills else "empty"


class EngineMetrics:
    """Counts steps; reads the budget of the watched engine, all 0 until there is one."""

    def __init__(self) -> None:
        self._engine: EngineView | None = None
        self.info: EngineInfo | None = None
        self.budget = _NO_BUDGET
        self.step_duration = {kind: Histogram(buckets.STEP_S) for kind in STEP_KINDS}
        self.phase_seconds = counter_set(PHASES)
        self.step_choices = Histogram(buckets.STEP_CHOICES)
        self.step_tokens = Histogram(buckets.STEP_TOKENS)
        self.decode_tokens = Counter()
        self.prefill_tokens = Counter()
        self.preemptions = Counter()
        self._oldest_queued_s = 0.0
        self._last_step_at = 0.0

    def watch(self, engine: EngineView, info: EngineInfo) -> None:
        """Read gauges from `engine` from now on."""
        self._engine, self.info = engine, info

    def step(self, record: StepRecord) -> None:
        """Count one step."""
        decode, prefill = record.decode_tokens, record.prefill_tokens
        self.step_duration[step_kind(record)].observe((record.end_ns - record.start_ns) * 1e-9)
        self.step_choices.observe(decode + len(record.prefills))
        self.step_tokens.observe(decode + prefill)
        self.decode_tokens.add(decode)
        self.prefill_tokens.add(prefill)
        self.preemptions.add(len(record.preempted))
        phases, seconds = record.phases, self.phase_seconds
        seconds["plan"].add(phases.plan_s)
        seconds["launch"].add(phases.launch_s)
        seconds["device"].add(phases.device_s)
        seconds["collect"].add(phases.collect_s)
        seconds["emit"].add(phases.emit_s)
        self._oldest_queued_s = record.oldest_queued_s
        self._last_step_at = time.monotonic()

    def refresh(self) -> None:
        """Take the budget that the gauges show: once a scrape, so that they are of one moment."""
        if self._engine is not None:
            self.budget = self._engine.snapshot()

    def used_ratio(self) -> float:
        """Share of the KV pool that running requests hold, 0..1."""
        budget = self.budget
        return budget.kv_used_tokens / budget.kv_total_tokens if budget.kv_total_tokens else 0.0

    def queue_age_s(self) -> float:
        """Age of the oldest waiting request: as of the last step, plus the time since, so a stalled engine shows."""
        if not self.budget.queued:
            return 0.0
        return self._oldest_queued_s + time.monotonic() - self._last_step_at if self._last_step_at else 0.0

    def heartbeat_age_s(self) -> float:
        """How long the step that runs now has been running; 0 when the engine is idle."""
        progress = self._engine.progress() if self._engine is not None else None
        return progress.step_age_s if progress is not None and progress.busy else 0.0

    def families(self) -> list[Family]:
        """Every series of the engine."""
        return [
            gauge("weir_kv_total_tokens", "KV slots in the pool.", lambda: self.budget.kv_total_tokens),
            gauge("weir_kv_free_tokens", "KV slots that hold nothing.", lambda: self.budget.kv_free_tokens),
            gauge("weir_kv_used_tokens", "KV slots held by running requests.", lambda: self.budget.kv_used_tokens),
            gauge(
                "weir_kv_cached_tokens",
                "KV slots of idle prefix-cache blocks, freed on demand.",
                lambda: self.budget.kv_cached_tokens,
            ),
            gauge(
                "weir_kv_reserved_peak_tokens",
                "Most KV slots that the admitted requests will hold at once.",
                lambda: self.budget.kv_reserved_peak_tokens,
            ),
            gauge("weir_kv_used_ratio", "Share of the KV pool held by running requests, 0 to 1.", self.used_ratio),
            gauge("weir_running_requests", "Requests being computed.", lambda: self.budget.running),
            gauge("weir_queue_requests", "Requests that wait for admission.", lambda: self.budget.queued),
            gauge(
                "weir_queue_tokens",
                "Prompt and output tokens of the waiting requests.",
                lambda: self.budget.queued_tokens,
            ),
            gauge("weir_queue_age_seconds", "Age of the oldest waiting request.", self.queue_age_s),
            gauge(
                "weir_queue_wait_estimate_seconds",
                "Expected wait of a request that arrives now.",
                lambda: self.budget.estimated_wait_s,
            ),
            gauge("weir_engine_heartbeat_age_seconds", "Age of the running step; 0 when idle.", self.heartbeat_age_s),
            histograms("weir_step_duration_seconds", "Scheduling steps by what they held.", "kind", self.step_duration),
            counters("weir_step_phase_seconds_total", "Time in each phase of the steps.", "phase", self.phase_seconds),
            histogram("weir_step_choices", "Batch size: sequences in a step.", self.step_choices),
            histogram("weir_step_tokens", "Tokens computed in a step.", self.step_tokens),
            counter("weir_decode_tokens_total", "Tokens computed by decodes.", self.decode_tokens),
            counter(
                "weir_prefill_tokens_total", "Tokens computed by prompt chunks and recomputation.", self.prefill_tokens
            ),
            counter("weir_preemptions_total", "Requests that gave their KV blocks back.", self.preemptions),
        ]
