"""Metrics of requests: latencies as the client sees them, tokens, how they ended."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from weir.engine.errors import SlowReaderError
from weir.telemetry import buckets
from weir.telemetry.outcome import REJECTIONS, STATUS_CODES, Outcome
from weir.telemetry.series import (
    Counter,
    Family,
    Histogram,
    counter,
    counter_set,
    counters,
    gauge,
    histogram,
)

STATES = ("queued", "prefill", "decode")
FINISH_REASONS = ("stop", "length", "abort")
DEFAULT_TENANT = "default"


class OutputView(Protocol):
    """What a scrape reads of the output that waits for its readers."""

    @property
    def bytes(self) -> int: ...


class RequestMetrics:
    """The instruments that a request adds to as it goes through its states.

    `tenants` are the configured ones; every other name counts as "default", so that no client can make a series.
    """

    def __init__(self, tenants: Iterable[str] = ()) -> None:
        names = sorted({DEFAULT_TENANT, *tenants})
        self.tenant_requests = counter_set(names)
        self.tenant_prompt_tokens = counter_set(names)
        self.tenant_output_tokens = counter_set(names)
        self.active = 0
        self.output: OutputView | None = None
        self.slow_readers = Counter()
        self.requests = counter_set(STATUS_CODES)
        self.admitted = Counter()
        self.rejected = counter_set(REJECTIONS)
        self.cancellations = counter_set(STATES)
        self.finished_choices = counter_set(FINISH_REASONS)
        self.prompt_tokens = Counter()
        self.output_tokens = Counter()
        self.prefix_query_tokens = Counter()
        self.prefix_hit_tokens = Counter()
        self.prompt_length = Histogram(buckets.REQUEST_TOKENS)
        self.output_length = Histogram(buckets.REQUEST_TOKENS)
        self.time_to_first_token = Histogram(buckets.TTFT_S)
        self.inter_token = Histogram(buckets.INTER_TOKEN_S)
        self.time_per_output_token = Histogram(buckets.INTER_TOKEN_S)
        self.duration = Histogram(buckets.REQUEST_S)
        self.queue = Histogram(buckets.REQUEST_S)
        self.prefill = Histogram(buckets.REQUEST_S)
        self.decode = Histogram(buckets.REQUEST_S)
        self.inference = Histogram(buckets.REQUEST_S)

    def tenant(self, name: str) -> str:
        """The label of a tenant that a request names."""
        return name if name in self.tenant_requests else DEFAULT_TENANT

    def ended(self, outcome: Outcome, state: str, was_admitted: bool, duration_s: float, trace_id: str | None) -> None:
        """Count the end of a request that was in `state` (one of STATES)."""
        self.requests[outcome.status if outcome.status in self.requests else "UNKNOWN"].add()
        self.duration.observe(duration_s, trace_id=trace_id)
        if outcome.status == "CANCELLED":
            self.cancellations[state].add()
        if not was_admitted:
            self.rejected[outcome.rejection].add()
        if isinstance(outcome.error, SlowReaderError):
            self.slow_readers.add()
        if not outcome.ok:
            self.finished_choices["abort"].add()

    def families(self) -> list[Family]:
        """Every series of requests."""
        decided = "weir_admission_decisions_total"
        decisions = Family(decided, "Admission decisions by reason.", "counter")
        decisions.series.append(((("decision", "admitted"), ("reason", "fits")), self.admitted))
        decisions.series += [
            ((("decision", "rejected"), ("reason", reason)), count) for reason, count in self.rejected.items()
        ]
        return [
            gauge("weir_active_requests", "Requests between their arrival and their last byte.", lambda: self.active),
            gauge(
                "weir_output_buffer_bytes",
                "Output that waits for its readers, about, in memory.",
                lambda: self.output.bytes if self.output is not None else 0,
            ),
            counter("weir_slow_readers_total", "Calls ended because nobody read them.", self.slow_readers),
            counters("weir_requests_total", "Requests by final gRPC status.", "status", self.requests),
            decisions,
            counters("weir_cancellations_total", "Cancelled requests by state.", "state", self.cancellations),
            counters("weir_finished_total", "Finished choices by reason.", "reason", self.finished_choices),
            counter("weir_prompt_tokens_total", "Prompt tokens of admitted requests.", self.prompt_tokens),
            counter("weir_output_tokens_total", "Tokens sampled and sent.", self.output_tokens),
            counter(
                "weir_prefix_cache_query_tokens_total",
                "Prompt tokens looked up in the prefix cache.",
                self.prefix_query_tokens,
            ),
            counter(
                "weir_prefix_cache_hit_tokens_total", "Prompt tokens found in the prefix cache.", self.prefix_hit_tokens
            ),
            counters("weir_tenant_requests_total", "Admitted requests by tenant.", "tenant", self.tenant_requests),
            counters(
                "weir_tenant_prompt_tokens_total", "Prompt tokens by tenant.", "tenant", self.tenant_prompt_tokens
            ),
            counters(
                "weir_tenant_output_tokens_total", "Output tokens by tenant.", "tenant", self.tenant_output_tokens
            ),
            histogram("weir_request_prompt_tokens", "Prompt length.", self.prompt_length),
            histogram("weir_request_output_tokens", "Output length over all choices.", self.output_length),
            histogram("weir_time_to_first_token_seconds", "From arrival to the first token.", self.time_to_first_token),
            histogram("weir_inter_token_latency_seconds", "Between tokens of a choice.", self.inter_token),
            histogram(
                "weir_time_per_output_token_seconds",
                "Mean time between the tokens of a finished request.",
                self.time_per_output_token,
            ),
            histogram("weir_request_duration_seconds", "From arrival to the end, however it ended.", self.duration),
            histogram("weir_request_queue_seconds", "From arrival to admission.", self.queue),
            histogram("weir_request_prefill_seconds", "From admission to the first token.", self.prefill),
            histogram("weir_request_decode_seconds", "From the first token to the last.", self.decode),
            histogram("weir_request_inference_seconds", "From admission to the last token.", self.inference),
        ]
