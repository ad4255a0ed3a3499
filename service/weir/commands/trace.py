"""`weir trace FILE`: a trace file as one HTML page, requests as rows and scheduling steps as columns."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from weir.exit_codes import OK, WRONG_USAGE
from weir.telemetry.timeline import TraceFileError, read_timeline, render_page


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The file, and which steps of it."""
    parser.add_argument("file", type=Path, metavar="FILE", help="OTLP/JSON lines, as --trace-file writes them")
    parser.add_argument("-o", "--output", type=Path, metavar="HTML", help="page to write (default: FILE with .html)")
    parser.add_argument("--first", type=int, metavar="STEP", help="leave out steps before this number")
    parser.add_argument("--last", type=int, metavar="STEP", help="leave out steps after this number")


def run(args: argparse.Namespace) -> int:
    """Write the page and print where it is."""
    output = args.output or args.file.with_suffix(".html")
    if output.exists() and output.samefile(args.file):
        print(f"weir trace: the page would replace {args.file}; name another one with -o", file=sys.stderr)
        return WRONG_USAGE
    try:
        with args.file.open(encoding="utf-8", errors="replace") as lines:
            timeline = read_timeline(lines, args.first, args.last)
        output.write_text(render_page(timeline, args.file.name), encoding="utf-8")
    except (OSError, TraceFileError) as error:
        print(f"weir trace: {error}", file=sys.stderr)
        return WRONG_USAGE
    if timeline.unreadable:
        print(f"weir trace: {timeline.unreadable} unreadable lines were left out", file=sys.stderr)
    print(f"{output}: {len(timeline.rows)} requests in {len(timeline.steps)} steps")
    return OK
