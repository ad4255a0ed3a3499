"""Stop strings are found in text, leftmost first, and no character is held back without need."""

from __future__ import annotations

import pytest
from weir.engine.detokenizer import TextStream, TokenTable
from weir.engine.stop_strings import StopScanner, compile_stop_strings


def scan(pieces: list[str], *stops: str, include_stop: bool = False) -> tuple[list[str], str | None]:
    scanner = StopScanner(compile_stop_strings(stops), include_stop)
    out = []
    for piece in pieces:
        out.append(scanner.push(piece))
        if scanner.found is not None:
            return out, scanner.found
    out.append(scanner.finish())
    return out, scanner.found


def test_a_stop_within_one_token_drops_the_text_after_it() -> None:
    assert scan(["hello. World"], ".") == (["hello"], ".")


def test_a_stop_that_spans_tokens_is_never_streamed_in_part() -> None:
    assert scan(["one <", "|e", "nd|", "> two"], "<|end|>") == (["one ", "", "", ""], "<|end|>")


def test_only_the_longest_suffix_that_begins_a_stop_is_held() -> None:
    """A fixed hold-back of the longest stop minus one delays every token; here only "\\n" waits."""
    assert scan(["some text", " more\n", "User"], "\nHuman:") == (["some text", " more", "\nUser", ""], None)


def test_held_text_is_let_go_when_refuted() -> None:
    assert scan(["a<", "b"], "<end>") == (["a", "<b", ""], None)


def test_held_text_is_let_go_at_the_end() -> None:
    assert scan(["a<en"], "<end>") == (["a", "<en"], None)


def test_a_refuted_prefix_may_contain_the_beginning_of_the_stop() -> None:
    assert scan(["aab", "aab", "aac", "!"], "aabaac") == (["", "aab", ""], "aabaac")


def test_include_stop_keeps_the_stop_and_drops_what_follows() -> None:
    assert scan(["x EN", "D y"], "END", include_stop=True) == (["x ", "END"], "END")


def test_the_leftmost_of_two_matches_wins() -> None:
    assert scan(["x b a y"], "a", "b") == (["x "], "b")


def test_a_match_waits_for_one_that_began_earlier() -> None:
    assert scan(["a", "bc", "d"], "bc", "abcd") == (["", "", ""], "abcd")


def test_a_match_is_final_once_the_earlier_one_is_refuted() -> None:
    assert scan(["a", "bc", "x"], "bc", "abcd") == (["", "", "a"], "bc")


def test_a_waiting_match_is_final_at_the_end() -> None:
    assert scan(["a", "bc"], "bc", "abcd") == (["", "", "a"], "bc")


@pytest.mark.parametrize("stops", [("ab", "abc"), ("abc", "ab")])
def test_of_two_stops_at_one_place_the_shorter_ends_the_text(stops: tuple[str, str]) -> None:
    assert scan(["xabc"], *stops, include_stop=True) == (["xab"], "ab")


def test_a_stop_inside_a_refuted_longer_one_is_found() -> None:
    assert scan(["say xyz"], "xyw", "yz") == (["say x"], "yz")


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one character"):
        compile_stop_strings(("",))


def test_a_stop_may_be_split_inside_a_character() -> None:
    data = "はい。そう".encode()
    stream = TextStream(TokenTable([data[:7], data[7:]]), stop=("。",))
    assert (stream.push(0), stream.push(1), stream.stopped) == ("はい", "", "。")


def test_nothing_follows_a_stop() -> None:
    stream = TextStream(TokenTable([b"a.b", b"c", b"\xe4"]), stop=(".",))
    assert [stream.push(0), stream.push(1), stream.push(2), stream.finish()] == ["a", "", "", ""]


def test_a_stop_is_matched_against_the_text_that_the_client_sees() -> None:
    """The space that a sentencepiece tokenizer adds is not part of the text, so no stop string can contain it."""
    stream = TextStream(TokenTable([b" hi", b" hi"], strips_leading_space=True), stop=(" hi",))
    assert [stream.push(0), stream.push(1), stream.stopped] == ["hi", "", " hi"]


def test_an_invalid_byte_before_a_stop_does_not_hide_it() -> None:
    stream = TextStream(TokenTable([b"\xff", b"ok STOP no"]), stop=("STOP",))
    assert [stream.push(0), stream.push(1), stream.stopped] == ["\ufffd", "ok ", "STOP"]
