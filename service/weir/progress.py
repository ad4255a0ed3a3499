"""How far a long job is, on stderr: a bar on a terminal, and a line every few seconds where nobody watches."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from typing import Self, TextIO

REDRAW_S = 0.2
LINE_EVERY_S = 5.0

_BAR_CELLS = 24
_ERASE = "\r\x1b[K"


class Progress:
    """Used as a block around the job, which calls `add`. Without a `total` it shows only that time passes.

    A thread draws, so that a job that waits in one long call is shown too.
    """

    def __init__(
        self,
        what: str,
        total: int | None = None,
        unit: str = "",
        out: TextIO | None = None,
        every_s: float | None = None,
    ) -> None:
        self.done = 0
        self._what = what
        self._total = total
        self._unit = unit
        self._out = out or sys.stderr
        self._terminal = self._out.isatty()
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
            self._write(_ERASE)

    def add(self, count: int = 1) -> None:
        """So much more is done."""
        self.done += count

    def _draw(self) -> None:
        while not self._over.wait(self._every_s):
            text = self._text(time.monotonic() - self._began)
            if self._terminal:
                width = max(20, shutil.get_terminal_size().columns - 1)
                self._write(_ERASE + text[:width])
            else:
                self._write(text + "\n")

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
