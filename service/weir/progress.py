"""How far a long job is: a bar on a terminal, and a line every few seconds where nobody watches."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Callable
from typing import Self, TextIO

REDRAW_S = 0.2
LINE_EVERY_S = 5.0

# What a line on the same terminal begins with, to take the place of a bar.
ERASE = "\r\x1b[K"

_BAR_CELLS = 24


class Progress:
    """Used as a block around the job, which calls `add`. Without a `total` it shows only that time passes.

    A thread draws, so that a job that waits in one long call is shown too. say: takes the lines, such as a logger does;
    default: they are written to `out`.
    """

    def __init__(
        self,
        what: str,
        total: int | None = None,
        unit: str = "",
        out: TextIO | None = None,
        every_s: float | None = None,
        say: Callable[[str], None] | None = None,
        terminal: bool | None = None,
    ) -> None:
        self.done = 0
        self._what = what
        self._total = total
        self._unit = unit
        self._out = out or sys.stderr
        self._terminal = self._out.isatty() if terminal is None else terminal
        self._say = say or (lambda line: self._write(line + "\n"))
        self._every_s = every_s or (REDRAW_S if self._terminal else LINE_EVERY_S)
        self._began = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._draw, name="progress", daemon=True)

    def __enter__(self) -> Self:
        self._began = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        if self._terminal:
            self._write(ERASE)

    def add(self, count: int = 1) -> None:
        """So much more is done."""
        self.done += count

    def at(self, what: str, done: int, total: int | None) -> None:
        """The job has come to something else, whose time begins now, or so far with it."""
        if what != self._what:
            self._began = time.monotonic()
        self._what, self.done, self._total = what, done, total

    def _draw(self) -> None:
        while not self._over.wait(self._every_s):
            text = self._text(time.monotonic() - self._began)
            if self._terminal:
                width = max(20, shutil.get_terminal_size().columns - 1)
                self._write(ERASE + text[:width])
            else:
                self._say(text)

    def _text(self, elapsed_s: float) -> str:
        if self._total is None:
            return f"{self._what}, {elapsed_s:.0f} s"
        share = min(1.0, self.done / self._total) if self._total else 1.0
        filled = round(share * _BAR_CELLS)
        bar = f" [{'#' * filled}{'.' * (_BAR_CELLS - filled)}]" if self._terminal else ""
        rate = f", {self.done / elapsed_s:,.0f}/s" if self.done and elapsed_s > 0 else ""
        return f"{self._what}{bar} {self.done:,} of {self._total:,} {self._unit}, {elapsed_s:.0f} s{rate}"

    def _write(self, text: str) -> None:
        try:
            self._out.write(text)
            self._out.flush()
        except (OSError, ValueError):
            # Whoever read it is gone; the job is not.
            self._over.set()
