"""What happened to the spans: the exporter's own counters, so that a missing trace has a reason."""

from __future__ import annotations

from weir.telemetry.series import Counter, Family, counter, counter_set, counters

DROP_REASONS = ("ring_full", "build_failed", "export_failed", "shutdown")


class TraceMetrics:
    """Spans sent, and records and spans dropped."""

    def __init__(self) -> None:
        self.exported = Counter()
        self.dropped = counter_set(DROP_REASONS)

    def families(self) -> list[Family]:
        """Every series of tracing."""
        return [
            counter("weir_trace_exported_spans_total", "Spans that every exporter took.", self.exported),
            counters(
                "weir_trace_dropped_total",
                "Records (ring_full, build_failed, shutdown) and spans (export_failed) that were lost.",
                "reason",
                self.dropped,
            ),
        ]
