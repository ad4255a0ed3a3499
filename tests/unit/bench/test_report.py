"""Requests that failed are counted, and count in no latency; figures that do not exist are none."""

from __future__ import annotations

import json

from weir.bench.report import EngineCounts, RequestTimes, make_report
from weir.bench.workload import WorkItem, Workload

TWO = Workload("two", (WorkItem((1, 2, 3), 2), WorkItem((4, 5), 2)))


def counts(needed: int | None) -> EngineCounts:
    return EngineCounts(steps=3, tokens_computed=12, tokens_needed=needed, peak_kv_tokens=5, kv_total_tokens=64)


def test_a_failed_request_counts_in_no_latency() -> None:
    times = [RequestTimes(0.0, [1.0, 3.0], 2), RequestTimes(0.0, [50.0], 1, failed="UNAVAILABLE")]
    report = make_report(TWO, "over gRPC", times, 4.0, counts(None))
    assert (report.requests, report.prompt_tokens, report.output_tokens) == (2, 3, 3)
    assert (report.ttft_s.p99, report.itl_s.p99, report.e2e_s.p99) == (1.0, 2.0, 3.0)
    assert report.failed == {"UNAVAILABLE": 1}
    assert report.engine.padding_tokens is None
    assert "failed                  1 UNAVAILABLE" in report.to_text()
    assert "not known" in report.to_text()


def test_padding_is_what_was_computed_beyond_need() -> None:
    times = [RequestTimes(0.0, [1.0], 2), RequestTimes(0.0, [1.0], 2)]
    report = make_report(TWO, "in process", times, 4.0, counts(10))
    assert report.to_json()["padding_tokens"] == 2
    assert "failed " not in report.to_text()


def test_figures_that_do_not_exist_are_null_and_the_json_is_json() -> None:
    """One token each: there is no time between tokens."""
    times = [RequestTimes(0.0, [1.0], 1), RequestTimes(0.0, [2.0], 1)]
    report = make_report(TWO, "in process", times, 4.0, counts(10))
    written = json.dumps(report.to_json(), allow_nan=False)
    assert json.loads(written)["itl_s"] == {"p50": None, "p90": None, "p99": None}
    assert "ITL p50/p90/p99         none" in report.to_text()
