"""The span of one step, as the SDK's span type: attributes and links are made only when someone reads them."""

from __future__ import annotations

from dataclasses import dataclass

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext

from weir.engine.records import ChunkRecord, StepRecord
from weir.telemetry import attributes as names
from weir.telemetry.engine_metrics import step_kind
from weir.telemetry.request_trace import AnchoredClock

STEP_SPAN = "engine.step"
MAX_CHUNKS = 32


@dataclass(slots=True)
class RequestSteps:
    """A request as the steps see it: its span, and which steps carried its tokens so far."""

    context: SpanContext
    count: int = 0
    first: int = 0
    last: int = 0
    # The link of a step that decoded one token of it, as OTLP bytes: the same each time, so encoded once.
    decode_link: bytes = b""

    def add(self, step: int) -> None:
        """`step` carried tokens of this request."""
        if self.count == 0:
            self.first = step
        self.count += 1
        self.last = step

    def link(self, decode_tokens: int, prefill_tokens: int) -> Link:
        """The link of a step that computed these many tokens of the request."""
        counts = {names.STEP_DECODE_TOKENS: decode_tokens, names.STEP_PREFILL_TOKENS: prefill_tokens}
        return Link(self.context, {name: count for name, count in counts.items() if count})


StepValue = int | float | str | list[str]

# A request with the tokens that one step decoded and prefilled for it.
LinkRow = tuple[RequestSteps, int, int]


class StepSpan(ReadableSpan):
    """Ended when it is made. `rows` become links; `omitted` more did not fit."""

    def __init__(
        self,
        record: StepRecord,
        context: SpanContext,
        rows: list[LinkRow],
        omitted: int,
        resource: Resource,
        scope: InstrumentationScope,
        clock: AnchoredClock,
    ) -> None:
        super().__init__(
            STEP_SPAN,
            context=context,
            resource=resource,
            instrumentation_scope=scope,
            start_time=clock.at_ns(record.start_ns),
            end_time=clock.at_ns(record.end_ns),
        )
        self.record = record
        self.rows = rows
        self.omitted = omitted

    @property
    def links(self) -> list[Link]:
        """One link for each request in the step that is sampled."""
        return [request.link(decode, prefill) for request, decode, prefill in self.rows]

    @property
    def attributes(self) -> dict[str, StepValue]:
        """What the step did, and the budget after it."""
        record, phases = self.record, self.record.phases
        found: dict[str, StepValue] = {
            names.STEP_NUMBER: record.step,
            names.STEP_KIND: step_kind(record),
            names.STEP_DECODE_TOKENS: record.decode_tokens,
            names.STEP_PREFILL_TOKENS: record.prefill_tokens,
            names.STEP_PREFIX_HIT_TOKENS: record.prefix_hit_tokens,
            names.STEP_CHUNKS: [_chunk(chunk) for chunk in record.prefills[:MAX_CHUNKS]],
            names.STEP_ADMITTED: len(record.admitted),
            names.STEP_FINISHED: len(record.finished),
            names.STEP_PREEMPTED: len(record.preempted),
            names.STEP_REJECTED: record.rejected,
            names.RUNNING: record.running,
            names.QUEUED: record.queued,
            names.QUEUED_TOKENS: record.queued_tokens,
            names.KV_TOTAL_TOKENS: record.kv_total_tokens,
            names.KV_FREE_TOKENS: record.kv_free_tokens,
            names.KV_USED_TOKENS: record.kv_used_tokens,
            names.KV_CACHED_TOKENS: record.kv_cached_tokens,
            names.KV_RESERVED_PEAK_TOKENS: record.kv_reserved_peak_tokens,
            names.STEP_PHASE["plan"]: phases.plan_s,
            names.STEP_PHASE["launch"]: phases.launch_s,
            names.STEP_PHASE["device"]: phases.device_s,
            names.STEP_PHASE["collect"]: phases.collect_s,
            names.STEP_PHASE["emit"]: phases.emit_s,
        }
        if len(record.prefills) > MAX_CHUNKS:
            found[names.STEP_CHUNKS_OMITTED] = len(record.prefills) - MAX_CHUNKS
        if self.omitted:
            found[names.STEP_LINKS_OMITTED] = self.omitted
        return found


def _chunk(chunk: ChunkRecord) -> str:
    return f"{chunk.request_id}[{chunk.choice}] {chunk.start}+{chunk.length}"
