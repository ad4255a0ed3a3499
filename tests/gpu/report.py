"""Writes what was measured into docs/gpu.md, between its markers, and into a JSON file beside it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]
START, END = "<!-- measured -->", "<!-- end -->"


def markdown(title: str, rows: Sequence[Row]) -> str:
    """A table with the union of the rows' columns; empty where a row lacks one."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    lines = [f"### {title}", "", "| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
    lines += ["| " + " | ".join(_cell(row.get(column, "")) for column in columns) + " |" for row in rows]
    return "\n".join(lines)


def write(page: Path, results: dict[str, Any]) -> None:
    """results: `about` (a sentence with card, date and versions) and lists of rows by title."""
    parts = [results["about"]]
    parts += [markdown(title, rows) for title, rows in results.items() if isinstance(rows, list) and rows]
    before, rest = page.read_text().split(START)
    page.write_text(before + START + "\n" + "\n\n".join(parts) + "\n" + END + rest.split(END)[1])
    page.with_suffix(".json").write_text(json.dumps(results, indent=1) + "\n")


def _cell(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
