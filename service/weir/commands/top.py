"""`weir top`: a live view of one server in the terminal."""

from __future__ import annotations

import argparse
import http.client
import ipaddress
import shutil
import sys
import time
import urllib.request
from collections.abc import Mapping
from urllib.parse import urlsplit

from weir.client import DeadlineError, UnavailableError
from weir.client.target import Target
from weir.commands.flags import positive
from weir.commands.target import add_target_arguments, connect, explain, reporting_errors
from weir.exit_codes import OK
from weir.telemetry.top import Key, TopView, pace, parse_samples

DEFAULT_METRICS_PORT = 9090
CALL_TIMEOUT_S = 5.0

_CLEAR, _HOME, _END_LINE, _END_SCREEN = "\x1b[2J", "\x1b[H", "\x1b[K", "\x1b[J"
_HIDE_CURSOR, _SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `weir top`."""
    parser.add_argument("--interval", type=positive, default=1.0, metavar="SECONDS", help="(default: %(default)s)")
    parser.add_argument("--once", action="store_true", help="draw one view and end")
    add_target_arguments(parser)
    parser.add_argument(
        "--metrics", metavar="URL", help=f"metrics port (default: http://HOST:{DEFAULT_METRICS_PORT}/metrics)"
    )


def run(args: argparse.Namespace) -> int:
    """Draw until interrupted or the server stops."""
    return reporting_errors("top", lambda: _watch(args), args.target)


def _watch(args: argparse.Namespace) -> int:
    metrics_url = args.metrics or default_metrics_url(args.target)
    screen = _Screen(live=sys.stdout.isatty() and not args.once)
    view = TopView(args.target)
    with connect(args) as client, screen:
        before, before_at = _scrape(metrics_url), time.monotonic()
        while True:
            time.sleep(args.interval)
            after, after_at = _scrape(metrics_url), time.monotonic()
            now = pace(before, after, after_at - before_at) if before is not None and after is not None else None
            if now is not None:
                view.note(now, time.strftime("%H:%M:%S"))
            try:
                budget = client.budget(timeout_s=CALL_TIMEOUT_S)
                screen.show(view.draw(budget, now, screen.width, color=screen.live))
            except (UnavailableError, DeadlineError) as error:
                # Loading, restarting or stuck: a live view waits for it.
                if not screen.live:
                    raise
                screen.show(f"weir top  {args.target}: {explain(error, args.target)}")
            if args.once:
                return OK
            before, before_at = after, after_at


def default_metrics_url(target: str) -> str:
    """Where the server of a target has its metrics unless it was told otherwise. Raises InvalidRequestError."""
    # A socket, and a name that stands for many servers, have no host; a metrics port may still be on this machine.
    host = Target.parse(target).host or "127.0.0.1"
    return f"http://{f'[{host}]' if ':' in host else host}:{DEFAULT_METRICS_PORT}/metrics"


def _scrape(url: str) -> Mapping[Key, float] | None:
    """The samples of the metrics port; None when it does not answer."""
    try:
        # The environment's proxies lead out of this machine, and cannot reach a port of it.
        proxies = [urllib.request.ProxyHandler({})] if _is_local(url) else []
        with urllib.request.build_opener(*proxies).open(url, timeout=CALL_TIMEOUT_S) as answer:
            return parse_samples(answer.read().decode())
    except (OSError, ValueError, http.client.HTTPException):
        return None


def _is_local(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class _Screen:
    """Redraws in place on a terminal, and writes one view after the other to anything else."""

    def __init__(self, live: bool) -> None:
        self.live = live

    @property
    def width(self) -> int:
        return shutil.get_terminal_size().columns

    def __enter__(self) -> None:
        if self.live:
            print(_HIDE_CURSOR + _CLEAR, end="")

    def __exit__(self, *_: object) -> None:
        if self.live:
            print(_SHOW_CURSOR, flush=True)

    def show(self, drawn: str) -> None:
        if self.live:
            print(_HOME + drawn.replace("\n", _END_LINE + "\n") + _END_LINE + _END_SCREEN, end="", flush=True)
        else:
            print(drawn, flush=True)
