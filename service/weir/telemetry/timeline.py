"""From a trace file to the picture of continuous batching: requests as rows, steps as columns.

Needs nothing but the standard library, so a trace can be looked at where no server is installed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from weir.telemetry import attributes as names

STEP_SPAN = "engine.step"
PAGE = Path(__file__).with_name("timeline.html")
_SERVER = 2


class TraceFileError(ValueError):
    """The file holds no scheduling step."""


@dataclass(frozen=True, slots=True)
class Step:
    """One column. Times in microseconds from the first step's start; KV counts in tokens."""

    number: int
    start_us: int
    duration_us: int
    decode_tokens: int
    prefill_tokens: int
    running: int
    queued: int
    kv_used: int
    kv_cached: int
    kv_reserved_peak: int
    kv_total: int


@dataclass(slots=True)
class Row:
    """One request: the columns it was in, with the tokens that each computed for it."""

    span_id: str
    request_id: str
    status: str = "unfinished"
    arrived_us: int | None = None
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    # (column, prefill tokens, decode tokens)
    cells: list[tuple[int, int, int]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Timeline:
    """What the page draws. `unreadable` lines were skipped: a process that is killed leaves half a line."""

    steps: list[Step]
    rows: list[Row]
    unreadable: int


def read_timeline(lines: Iterable[str], first: int | None = None, last: int | None = None) -> Timeline:
    """The timeline of the steps numbered `first` to `last` in a file of OTLP/JSON lines. Raises TraceFileError."""
    unreadable = 0
    step_spans: list[dict[str, Any]] = []
    request_spans: dict[str, dict[str, Any]] = {}
    for line in lines:
        try:
            spans = list(_spans(json.loads(line)))
            steps = [span for span in spans if span["name"] == STEP_SPAN]
            requests = {span["spanId"]: span for span in spans if span.get("kind") == _SERVER}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            unreadable += 1
            continue
        step_spans += steps
        request_spans |= requests
    try:
        found = _timeline(step_spans, request_spans, unreadable, first, last)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise TraceFileError(f"a span is not as weir writes it: {type(error).__name__} {error}") from None
    if not found.steps:
        raise TraceFileError("no engine.step span in the file, or none with these numbers")
    return found


def _timeline(
    step_spans: list[dict[str, Any]],
    request_spans: dict[str, dict[str, Any]],
    unreadable: int,
    first: int | None,
    last: int | None,
) -> Timeline:
    chosen = [
        (found, span)
        for span in step_spans
        for found in [_attributes(span)]
        if (first is None or found[names.STEP_NUMBER] >= first) and (last is None or found[names.STEP_NUMBER] <= last)
    ]
    chosen.sort(key=lambda item: int(item[1]["startTimeUnixNano"]))
    origin_ns = int(chosen[0][1]["startTimeUnixNano"]) if chosen else 0
    steps = [_step(found, span, origin_ns) for found, span in chosen]
    return Timeline(steps, _rows([span for _, span in chosen], request_spans, origin_ns), unreadable)


def _spans(line: Any) -> Iterator[dict[str, Any]]:
    for resource in line["resourceSpans"]:
        for scope in resource["scopeSpans"]:
            yield from scope["spans"]


def _attributes(node: dict[str, Any]) -> dict[str, Any]:
    return {item["key"]: _value(item["value"]) for item in node.get("attributes", ())}


def _value(value: dict[str, Any]) -> Any:
    if "intValue" in value:
        return int(value["intValue"])
    return next(iter(value.values()), None)


def _step(found: dict[str, Any], span: dict[str, Any], origin_ns: int) -> Step:
    start_ns, end_ns = int(span["startTimeUnixNano"]), int(span["endTimeUnixNano"])
    return Step(
        number=found[names.STEP_NUMBER],
        start_us=(start_ns - origin_ns) // 1000,
        duration_us=(end_ns - start_ns) // 1000,
        decode_tokens=found[names.STEP_DECODE_TOKENS],
        prefill_tokens=found[names.STEP_PREFILL_TOKENS],
        running=found[names.RUNNING],
        queued=found[names.QUEUED],
        kv_used=found[names.KV_USED_TOKENS],
        kv_cached=found[names.KV_CACHED_TOKENS],
        kv_reserved_peak=found[names.KV_RESERVED_PEAK_TOKENS],
        kv_total=found[names.KV_TOTAL_TOKENS],
    )


def _rows(steps: list[dict[str, Any]], requests: dict[str, dict[str, Any]], origin_ns: int) -> list[Row]:
    """Rows in the order in which requests first appear in a step."""
    rows: dict[str, Row] = {}
    for column, span in enumerate(steps):
        for link in span.get("links", ()):
            span_id = link["spanId"]
            if span_id not in rows:
                rows[span_id] = _row(span_id, requests.get(span_id), origin_ns)
            tokens = _attributes(link)
            cell = column, tokens.get(names.STEP_PREFILL_TOKENS, 0), tokens.get(names.STEP_DECODE_TOKENS, 0)
            rows[span_id].cells.append(cell)
    return list(rows.values())


def _row(span_id: str, span: dict[str, Any] | None, origin_ns: int) -> Row:
    if span is None:
        return Row(span_id, span_id[:8])
    found = _attributes(span)
    return Row(
        span_id,
        found.get(names.GEN_AI_RESPONSE_ID, span_id[:8]),
        found.get(names.RPC_STATUS, "unfinished"),
        (int(span["startTimeUnixNano"]) - origin_ns) // 1000,
        found.get(names.GEN_AI_USAGE_INPUT_TOKENS, 0),
        found.get(names.GEN_AI_USAGE_OUTPUT_TOKENS, 0),
        found.get(names.GEN_AI_USAGE_CACHED_TOKENS, 0),
    )


def render_page(timeline: Timeline, title: str) -> str:
    """One HTML file with everything in it: no network, no other file."""
    data = {"title": title, "steps": [asdict(s) for s in timeline.steps], "rows": [asdict(r) for r in timeline.rows]}
    # Inside a script element only "</" and "<!--" could end or change it; JSON allows the escape.
    embedded = json.dumps(data, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")
    return PAGE.read_text(encoding="utf-8").replace('"__TIMELINE__"', embedded)
