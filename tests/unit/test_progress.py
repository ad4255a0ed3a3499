"""A bar on a terminal, lines elsewhere, nothing for what is over at once, and no harm when nobody reads."""

from __future__ import annotations

import io
import time
from collections.abc import Callable

from weir.progress import Progress


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


class Gone(io.StringIO):
    """A stream whose reader has left."""

    def write(self, text: str) -> int:
        raise BrokenPipeError


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_terminal_gets_a_bar_in_one_line_that_is_gone_at_the_end() -> None:
    out = Terminal()
    with Progress("weir bench:", 8, "tokens", out, every_s=0.01) as progress:
        progress.add(2)
        until(lambda: "2 of 8 tokens" in out.getvalue())
        progress.add(6)
        until(lambda: "8 of 8 tokens" in out.getvalue())
    drawn = out.getvalue()
    # A quarter of 24 cells, then all.
    assert "[######..................] 2 of 8" in drawn
    assert "[########################] 8 of 8" in drawn
    assert "\n" not in drawn
    assert drawn.endswith("\r\x1b[K")


def test_anything_else_gets_a_line_now_and_then_without_control_characters() -> None:
    out = io.StringIO()
    with Progress("weir bench:", 2000, "tokens", out, every_s=0.01) as progress:
        progress.add(1500)
        until(lambda: out.getvalue().count("\n") >= 2)
    assert "weir bench: 1,500 of 2,000 tokens, 0 s, " in out.getvalue()
    assert out.getvalue().endswith("/s\n")
    assert "\r" not in out.getvalue()
    assert "[" not in out.getvalue()


def test_a_job_of_unknown_length_shows_that_time_passes() -> None:
    out = io.StringIO()
    with Progress("weir bench: loading the model", out=out, every_s=0.01):
        until(lambda: "weir bench: loading the model, 0 s\n" in out.getvalue())


def test_what_is_over_at_once_writes_nothing() -> None:
    out = io.StringIO()
    with Progress("weir bench:", 8, "tokens", out):
        pass
    assert out.getvalue() == ""


def test_a_job_goes_on_when_nobody_reads_of_it() -> None:
    with Progress("weir bench:", 8, "tokens", Gone(), every_s=0.001) as progress:
        time.sleep(0.02)
        progress.add(8)
    assert progress.done == 8


def test_a_job_of_stages_shows_the_one_it_is_at_and_its_own_time() -> None:
    lines: list[str] = []
    with Progress("loading", unit="MiB", every_s=0.01, say=lines.append, terminal=False) as progress:
        until(lambda: "loading, 0 s" in lines)
        progress.at("loading: reading weights", 3, 12)
        until(lambda: any(line.startswith("loading: reading weights 3 of 12 MiB, 0 s") for line in lines))
        progress.at("loading: making room", 0, None)
        until(lambda: "loading: making room, 0 s" in lines)
