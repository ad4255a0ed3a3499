"""`weir top`: from samples and a budget to lines of text."""

from __future__ import annotations

import argparse
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer

import grpc
import pytest
from weir.client import Budget
from weir.commands import top as command
from weir.commands.top import default_metrics_url
from weir.exit_codes import TRY_LATER
from weir.telemetry.metrics import Metrics
from weir.telemetry.top import TopView, pace, parse_samples
from weir.v1 import budget_pb2, budget_pb2_grpc

BUDGET = Budget(
    kv_total_tokens=1000,
    kv_free_tokens=350,
    kv_used_tokens=500,
    kv_cached_tokens=150,
    kv_reserved_peak_tokens=800,
    running_requests=7,
    queued_requests=2,
    queued_tokens=1234,
    estimated_wait_s=1.25,
    step=42,
)


def scrape(metrics: Metrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return parse_samples(metrics.text().decode())


def test_samples_are_read_with_their_labels() -> None:
    text = '# HELP a b\n# TYPE a counter\na_total 3\nb{x="1",y="a \\" b, c"} 2.5\nc{le="+Inf"} 1e+06\n'
    assert parse_samples(text) == {
        ("a_total", ()): 3.0,
        ("b", (("x", "1"), ("y", 'a \\" b, c'))): 2.5,
        ("c", (("le", "+Inf"),)): 1e6,
    }


def test_pace_is_the_growth_between_two_scrapes() -> None:
    metrics = Metrics("tiny")
    metrics.requests.output_tokens.add(100)
    metrics.requests.rejected["queue_full"].add(5)
    before = scrape(metrics)
    metrics.requests.output_tokens.add(60)
    metrics.engine.prefill_tokens.add(500)
    metrics.engine.step_duration["decode"].observe(0.02)
    metrics.engine.step_duration["mixed"].observe(0.04)
    metrics.requests.rejected["queue_full"].add(3)
    metrics.requests.requests["OK"].add(4)
    now = pace(before, scrape(metrics), seconds=2.0)
    assert (now.output_tokens_s, now.prefill_tokens_s, now.steps_s, now.requests_s) == (30, 250, 1, 2)
    assert now.step_time_s == pytest.approx(0.03)
    assert now.time_to_first_token_s is None
    assert now.rejected == {"queue_full": 3}


def test_a_server_that_restarted_has_no_negative_pace() -> None:
    metrics = Metrics("tiny")
    metrics.requests.output_tokens.add(100)
    assert pace(scrape(metrics), scrape(Metrics("tiny")), seconds=1.0).output_tokens_s == 0


def test_the_budget_is_a_bar_with_the_reserved_peak_marked() -> None:
    drawn = TopView("host:50051").draw(BUDGET, None, width=64, color=False)
    bar = next(line for line in drawn.splitlines() if line.startswith("KV budget"))
    # 40 cells for 1000 tokens: 20 used, 6 cached, 14 free; the peak of 800 ends in cell 32.
    assert bar == "KV budget   " + "█" * 20 + "▒" * 6 + "·" * 5 + "┃" + "·" * 8 + "  50 %"


def test_the_view_has_queue_pace_and_recent_rejections() -> None:
    metrics, view = Metrics("tiny"), TopView("host:50051")
    before = scrape(metrics)
    metrics.requests.output_tokens.add(90)
    metrics.engine.step_duration["decode"].observe(0.02)
    metrics.requests.rejected["deadline"].add(2)
    now = pace(before, scrape(metrics), 1.0)
    view.note(now, "12:00:01")
    drawn = view.draw(BUDGET, now, width=110, color=False)
    assert "7 running   2 waiting (1,234 tokens)   new ones wait 1.2 s" in drawn
    assert re.search(r"tokens/s .*█ 90$", drawn, re.MULTILINE)
    assert re.search(r"step time .*█ 20\.0 ms$", drawn, re.MULTILINE)
    assert "12:00:01      2 × deadline" in drawn


def test_no_line_is_wider_than_the_terminal_and_colours_end() -> None:
    metrics, view = Metrics("tiny"), TopView("host:50051")
    now = pace(scrape(metrics), scrape(metrics), 1.0)
    for width in (40, 80, 200):
        for line in view.draw(BUDGET, now, width).splitlines():
            assert len(re.sub(r"\x1b\[[0-9;]*m", "", line)) <= width
            assert line.count("\x1b[0m") == len(re.findall(r"\x1b\[[1-9]\d*m", line))


def test_an_engine_that_is_still_loading_has_an_empty_bar() -> None:
    nothing = Budget(0, 0, 0, 0, 0, 0, 0, 0, 0.0, 0)
    assert "- " in TopView("host:50051").draw(nothing, None, width=80, color=False).splitlines()[2]


class _Budgets(budget_pb2_grpc.BudgetServiceServicer):
    def GetBudget(  # noqa: N802
        self, request: budget_pb2.GetBudgetRequest, context: grpc.ServicerContext
    ) -> budget_pb2.GetBudgetResponse:
        return budget_pb2.GetBudgetResponse(budget=budget_pb2.Budget(kv_total_tokens=1000, kv_used_tokens=250, step=9))


def arguments(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return parser.parse_args(words)


def test_top_draws_a_live_server_once(capsys: pytest.CaptureFixture[str]) -> None:
    text = Metrics("tiny").text()

    class Scrape(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    http = HTTPServer(("127.0.0.1", 0), Scrape)
    threading.Thread(target=http.serve_forever, daemon=True).start()
    server = grpc.server(ThreadPoolExecutor(1))
    add_service: Callable[[object, grpc.Server], None] = budget_pb2_grpc.add_BudgetServiceServicer_to_server
    add_service(_Budgets(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    metrics = f"http://127.0.0.1:{http.server_address[1]}/metrics"
    try:
        code = command.run(
            arguments("--target", f"127.0.0.1:{port}", "--metrics", metrics, "--interval", "0.01", "--once")
        )
    finally:
        server.stop(None).wait()
        http.shutdown()
        http.server_close()
    drawn = capsys.readouterr().out
    assert code == 0
    assert f"weir top  127.0.0.1:{port}   step 9" in drawn
    assert " 25 %" in drawn
    assert "0.0 steps/s" in drawn


def test_top_says_why_a_server_cannot_be_asked(capsys: pytest.CaptureFixture[str]) -> None:
    nowhere = arguments("--target", "127.0.0.1:1", "--metrics", "http://127.0.0.1:1/", "--interval", "0.01", "--once")
    assert command.run(nowhere) == TRY_LATER
    assert capsys.readouterr().err.startswith("weir top: no server answers")


@pytest.mark.parametrize(
    ("target", "url"),
    [
        ("weir", "http://weir:9090/metrics"),
        ("10.0.0.1:50051", "http://10.0.0.1:9090/metrics"),
        ("[::1]:50051", "http://[::1]:9090/metrics"),
        ("dns:///weir:50051", "http://weir:9090/metrics"),
        ("unix:/run/weir.sock", "http://127.0.0.1:9090/metrics"),
    ],
)
def test_the_metrics_port_is_looked_for_on_the_targets_host(target: str, url: str) -> None:
    assert default_metrics_url(target) == url
