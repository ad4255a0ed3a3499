"""The lines of a token file, as the server and the command line read them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from weir.token_lines import TokenLine, token_lines


def test_a_line_is_a_token_or_a_tenant_and_its_token() -> None:
    text = "# ours\nalpha\n\n  beta==  \ntenant=gold  gamma\n\ttenant=batch\tdelta=\r\n"
    assert token_lines(text) == [
        TokenLine(2, "alpha"),
        TokenLine(4, "beta=="),
        TokenLine(5, "gamma", "gold"),
        TokenLine(6, "delta=", "batch"),
    ]


@pytest.mark.parametrize("token", ["a b", "gold:secret", "gold secret", "Tenant=gold x", "x tenant=gold", "tenant"])
def test_a_token_of_a_file_that_names_no_tenant_is_its_whole_line_whatever_it_contains(token: str) -> None:
    assert token_lines(f"{token}\n") == [TokenLine(1, token)]


def test_what_follows_a_tenant_is_the_token_to_the_end_of_the_line() -> None:
    assert token_lines("tenant=gold tenant=x  a # b") == [TokenLine(1, "tenant=x  a # b", "gold")]


@pytest.mark.parametrize("line", ["tenant=", "tenant=gold", "tenant= s3cret", "tenant=\ts3cret x"])
def test_a_tenant_without_a_name_or_a_token_is_an_error_that_shows_the_line_number_only(line: str) -> None:
    with pytest.raises(ValueError, match=r"^line 3 must be tenant=NAME TOKEN, with a space between$"):
        token_lines(f"# one\nalpha\n{line}\n")


@given(st.text())
def test_any_text_gives_stripped_tokens_or_an_error(text: str) -> None:
    try:
        lines = token_lines(text)
    except ValueError:
        assert "tenant=" in text
        return
    assert all(line.token == line.token.strip() != "" for line in lines)
