"""The rates, from token times worked out by hand."""

from __future__ import annotations

import pytest

from benchmarks.figures import decode_rate, output_rate, prefill_rate


def test_output_rate_counts_every_token_of_the_run() -> None:
    assert output_rate([[1.0, 2.0], [1.0, 2.0, 4.0]], wall_s=5.0) == pytest.approx(1.0)


def test_decode_rate_counts_only_while_all_requests_decode() -> None:
    # From 2.0, the last first token, to 4.0, the first last token: 3.0 and 4.0 of one, 2.5, 3.5 and 4.0 of the other.
    times = [[1.0, 2.0, 3.0, 4.0], [2.0, 2.5, 3.5, 4.0, 9.0]]
    assert decode_rate(times) == pytest.approx(5 / 2.0)


def test_decode_rate_refuses_requests_that_never_decode_together() -> None:
    with pytest.raises(ValueError, match="longer"):
        decode_rate([[1.0, 2.0], [3.0, 4.0]])


def test_prefill_rate_is_of_prompt_tokens() -> None:
    assert prefill_rate(100, wall_s=4.0) == 25.0
