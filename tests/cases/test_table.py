"""The tables of docs/cases.md and docs/limits.md name tests that exist, for every fault and every bound."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parents[1]
TABLE = (TESTS.parent / "docs" / "cases.md").read_text()
LIMITS = (TESTS.parent / "docs" / "limits.md").read_text()
NAMED = re.findall(r"`([\w/]+\.py)::((?:\w+::)?\w+)`", TABLE + LIMITS)


@cache
def functions(path: Path) -> frozenset[str]:
    """`test_name` and `Class::test_name` of a file, by parsing it."""
    found: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        members = node.body if isinstance(node, ast.ClassDef) else [node]
        prefix = f"{node.name}::" if isinstance(node, ast.ClassDef) else ""
        found |= {
            prefix + member.name for member in members if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef)
        }
    return frozenset(found)


def test_every_test_in_the_table_exists() -> None:
    missing = [f"{path}::{name}" for path, name in NAMED if name not in functions(TESTS / path)]
    assert not missing
    assert len(NAMED) > 200


def test_every_row_names_a_test_or_says_why_there_is_none() -> None:
    rows = [
        line for line in TABLE.splitlines() if line.startswith("|") and not line.startswith(("|---", "| the fault"))
    ]
    bare = [row for row in rows if "::test_" not in row and "not applicable: " not in row]
    assert not bare
    assert len(rows) > 120
