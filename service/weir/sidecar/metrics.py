"""The sidecar's own Prometheus metrics, in a registry of their own."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge

from weir.sidecar.engine_link import EngineView

FAULTS = ("unauthorized", "denied", "conflict", "gone", "missing", "invalid", "busy", "failing", "unreachable")
FIELDS = ("deletion_cost", "kv_ready")


class SidecarMetrics:
    """All series exist from the first scrape, at the value that says nothing happened yet."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._calls = Counter(
            "weir_sidecar_k8s_api_calls", "Calls of the Kubernetes API.", ["verb", "result"], registry=self.registry
        )
        self._errors = Counter(
            "weir_sidecar_k8s_api_errors", "Calls of the Kubernetes API that failed.", ["kind"], registry=self.registry
        )
        self.writes = Counter("weir_sidecar_writes", "Fields written to the pod.", ["field"], registry=self.registry)
        self.yielded = Gauge(
            "weir_sidecar_field_yielded", "1 while another manager owns the field.", ["field"], registry=self.registry
        )
        self._engine_up = Gauge("weir_sidecar_engine_up", "1 while the engine answers.", registry=self.registry)
        self._in_flight = Gauge("weir_sidecar_in_flight_requests", "Requests in the engine.", registry=self.registry)
        self.deletion_cost = Gauge(
            "weir_sidecar_deletion_cost", "What the pod's deletion costs, as last decided.", registry=self.registry
        )
        self.gate_open = Gauge(
            "weir_sidecar_gate_open",
            "0 while the readiness gate is closed, as last decided; 1 where there is none.",
            registry=self.registry,
        )
        self.gate_open.set(1)
        self.draining = Gauge("weir_sidecar_draining", "1 from the end of the pod's life.", registry=self.registry)
        self.drain_seconds = Gauge(
            "weir_sidecar_drain_seconds", "How long the drain took; 0 before.", registry=self.registry
        )
        self.drain_left = Gauge(
            "weir_sidecar_drain_left_requests",
            "Requests in flight when the drain ended.",
            registry=self.registry,
        )
        for kind in FAULTS:
            self._errors.labels(kind)
        for field in FIELDS:
            self.writes.labels(field)
            self.yielded.labels(field)

    def count_call(self, verb: str, result: str) -> None:
        """Count a call by its verb and `ok` or the kind of fault."""
        self._calls.labels(verb, result).inc()
        if result != "ok":
            self._errors.labels(result).inc()

    def see(self, view: EngineView | None) -> None:
        """Show what was seen of the engine."""
        self._engine_up.set(view is not None)
        if view is not None:
            self._in_flight.set(view.in_flight)
