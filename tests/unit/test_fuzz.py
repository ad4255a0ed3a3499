"""A few thousand damaged inputs with a fixed seed; `make fuzz` runs a hundred thousand, in processes with limits."""

from __future__ import annotations

import pytest

from tests.fuzz.run import run

INPUTS = {"Configs": 700, "Weights": 400, "Templates": 200, "Tokenizers": 120, "Requests": 800, "Metadata": 15}


@pytest.mark.slow
@pytest.mark.parametrize("kind", INPUTS)
def test_damaged_input_is_refused_by_a_typed_error(kind: str) -> None:
    # An untyped exception, an internal status, a line in the error log or something that stays held raises.
    ends = run(kind, seed=7, first=0, count=INPUTS[kind])
    assert sum(ends.values()) == INPUTS[kind]
    assert len(ends) >= 2, f"too few ways to end: {ends}"
