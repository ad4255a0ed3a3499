"""Tables in Markdown, and the places in a page where they stand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns after the first are aligned to the right."""
    rule = ["---", *("---:" for _ in header[1:])]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, rule, *rows))


def replace_between(page: Path, name: str, text: str) -> None:
    """Put `text` between `<!-- NAME: begin -->` and `<!-- NAME: end -->`. Raises ValueError without the markers."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, found, rest = page.read_text().partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"{page} has no markers {begin} and {end}")
    page.write_text(f"{before}{begin}\n{text}\n{end}{after}")
