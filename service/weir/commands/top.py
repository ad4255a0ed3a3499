"""`weir top`: a server's KV budget and queue, a line a change."""

from __future__ import annotations

import argparse

from weir.client import Budget
from weir.commands.target import add_target_arguments, connect, reporting_errors
from weir.exit_codes import OK

_COLUMNS = (9, 8, 7, 9, 7, 9, 9, 9, 9, 5)
_TITLES = ("step", "running", "queued", "q tokens", "wait s", "KV used", "cached", "free", "peak", "use")
_HEADER_EVERY = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `weir top`."""
    parser.add_argument("--interval", type=float, default=1.0, metavar="SECONDS", help="(default: %(default)s)")
    add_target_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Watch until interrupted or the server stops."""
    return reporting_errors("top", lambda: _watch(args))


def _watch(args: argparse.Namespace) -> int:
    with connect(args) as client:
        for line, budget in enumerate(client.watch_budget(args.interval)):
            if line % _HEADER_EVERY == 0:
                print(_line(*_TITLES))
            print(_row(budget), flush=True)
    return OK


def _row(budget: Budget) -> str:
    return _line(
        budget.step,
        budget.running_requests,
        budget.queued_requests,
        budget.queued_tokens,
        f"{budget.estimated_wait_s:.1f}",
        budget.kv_used_tokens,
        budget.kv_cached_tokens,
        budget.kv_free_tokens,
        budget.kv_reserved_peak_tokens,
        f"{budget.kv_used_tokens / budget.kv_total_tokens:.0%}",
    )


def _line(*cells: object) -> str:
    return " ".join(f"{cell!s:>{width}}" for cell, width in zip(cells, _COLUMNS, strict=True))
