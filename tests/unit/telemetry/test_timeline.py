"""`weir trace`: from a trace file to rows and columns, and to one page."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

import pytest
from weir.commands import trace as command
from weir.config import Settings, TelemetrySettings
from weir.engine.errors import CancelledError
from weir.telemetry.telemetry import Telemetry
from weir.telemetry.timeline import Row, TraceFileError, read_timeline, render_page

from tests.unit.telemetry.factories import GENERATE, admitted, decode, delta, prefill, request, step

START_NS = 1_700_000_000_000_000_000


@pytest.fixture
def trace_file(tmp_path: Path) -> Path:
    """Steps 1 to 3 of 10 ms each: `a` in all of them, `b` in the last two, cancelled; `c` never ends."""
    path = tmp_path / "trace.jsonl"
    telemetry = Telemetry(Settings(telemetry=TelemetrySettings(trace_file=str(path))), "tiny")
    telemetry.tracing.start()
    a, b, c = (telemetry.request_started(GENERATE, {}) for _ in range(3))
    for observer, request_id in ((a, "a"), (b, "b"), (c, "</script>")):
        observer.submitted(request(request_id))
        observer.queued(request_id)
    for number, decodes, prefills in (
        (1, (), (prefill("a", 0, 4),)),
        (2, (decode("a"),), (prefill("b", 0, 3),)),
        (3, (decode("a"), decode("b")), (prefill("</script>", 0, 2),)),
    ):
        start_ns = START_NS + (number - 1) * 10_000_000
        telemetry.step(step(number, decodes, prefills, duration_ns=10_000_000, start_ns=start_ns))
    a.event(admitted("a"))
    a.event(delta("a", tokens=3, last=True))
    a.finished("OK", None)
    b.finished("CANCELLED", CancelledError())
    telemetry.tracing.shutdown()
    return path


def rows_by_id(path: Path, **limits: int) -> dict[str, Row]:
    with path.open() as lines:
        return {row.request_id: row for row in read_timeline(lines, **limits).rows}


def test_steps_are_columns_in_order_with_their_budget(trace_file: Path) -> None:
    with trace_file.open() as lines:
        timeline = read_timeline(lines)
    assert [(s.number, s.start_us, s.duration_us) for s in timeline.steps] == [
        (1, 0, 10_000),
        (2, 10_000, 10_000),
        (3, 20_000, 10_000),
    ]
    assert [(s.prefill_tokens, s.decode_tokens) for s in timeline.steps] == [(4, 0), (3, 1), (2, 2)]
    first = timeline.steps[0]
    assert (first.kv_used, first.kv_cached, first.kv_reserved_peak, first.kv_total) == (1000, 96, 2048, 4096)


def test_requests_are_rows_with_a_cell_for_each_step_they_were_in(trace_file: Path) -> None:
    rows = rows_by_id(trace_file)
    assert rows["a"].cells == [(0, 4, 0), (1, 0, 1), (2, 0, 1)]
    assert (rows["a"].status, rows["a"].prompt_tokens, rows["a"].output_tokens) == ("OK", 4, 3)
    assert rows["b"].cells == [(1, 3, 0), (2, 0, 1)]
    assert rows["b"].status == "CANCELLED"


def test_a_request_whose_span_is_not_in_the_file_is_named_by_its_span(trace_file: Path) -> None:
    [unfinished] = [row for row in rows_by_id(trace_file).values() if row.status == "unfinished"]
    assert unfinished.request_id == unfinished.span_id[:8]
    assert unfinished.cells == [(2, 2, 0)]


def test_a_range_of_steps_is_cut_out(trace_file: Path) -> None:
    rows = rows_by_id(trace_file, first=2, last=2)
    assert {request_id: row.cells for request_id, row in rows.items()} == {"a": [(0, 0, 1)], "b": [(0, 3, 0)]}


def test_half_a_line_is_left_out_and_counted(trace_file: Path) -> None:
    whole = trace_file.read_text()
    timeline = read_timeline([whole, whole[: len(whole) // 2], "[]", "7"])
    assert timeline.unreadable == 3
    assert len(timeline.steps) == 3


def test_a_file_without_steps_is_refused() -> None:
    with pytest.raises(TraceFileError, match=r"no engine\.step span"):
        read_timeline(['{"resourceSpans": []}'])


def test_the_page_needs_nothing_but_itself_and_no_name_breaks_out_of_it(trace_file: Path) -> None:
    with trace_file.open() as lines:
        timeline = read_timeline(lines)
    timeline.rows[0].request_id = "</script><script>alert(1)</script>"
    page = render_page(timeline, "trace <1>")
    assert not re.search(r"(?:src|href)=|@import|url\(|https?://", page)
    assert page.count("</script>") == 1
    embedded = re.search(r"const data = (\{.*\});\n", page)
    assert embedded is not None
    data = json.loads(embedded[1])
    assert data["title"] == "trace <1>"
    assert data["rows"][0]["request_id"] == "</script><script>alert(1)</script>"
    assert len(data["steps"]) == 3


def run(*words: str) -> int:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return command.run(parser.parse_args(words))


def test_the_command_writes_a_page_beside_the_file(trace_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(str(trace_file)) == 0
    page = trace_file.with_suffix(".html")
    assert capsys.readouterr().out == f"{page}: 3 requests in 3 steps\n"
    assert page.read_text().startswith("<!doctype html>")


def test_the_command_says_what_is_wrong_with_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty.jsonl").write_text("")
    assert run(str(tmp_path / "empty.jsonl")) == 2
    assert run(str(tmp_path / "missing.jsonl")) == 2
    assert len(capsys.readouterr().err.splitlines()) == 2
