"""When a choice ends, and what its last token says."""

from __future__ import annotations

from dataclasses import replace

from weir.engine.detokenizer import TextStream, TokenTable
from weir.engine.request import ChoiceFinish, FinishReason, SamplingParams
from weir.engine.stop import StopRule, accept_token

PARAMS = SamplingParams(max_tokens=8)
EOS = (2, 3)
LENGTH = ChoiceFinish(FinishReason.LENGTH)
END_OF_SEQUENCE = ChoiceFinish(FinishReason.STOP)


def rule(max_output_tokens: int = 100, **changes: object) -> StopRule:
    return StopRule(replace(PARAMS, **changes), EOS, max_output_tokens)  # type: ignore[arg-type]


def test_every_end_of_sequence_id_of_the_model_stops() -> None:
    assert [rule().check(token_id, 1) for token_id in (1, 2, 3)] == [None, END_OF_SEQUENCE, END_OF_SEQUENCE]


def test_ignore_eos_covers_the_whole_list_but_no_stop_id_of_the_request() -> None:
    """A model with several end-of-sequence ids once stopped in spite of ignore_eos."""
    ignoring = rule(ignore_eos=True, stop_token_ids=(7,))
    assert [ignoring.check(token_id, 1) for token_id in (2, 3)] == [None, None]
    assert ignoring.check(7, 1) == ChoiceFinish(FinishReason.STOP, 7)


def test_an_end_of_sequence_id_that_the_request_names_stops_under_its_own_id() -> None:
    assert rule(ignore_eos=True, stop_token_ids=(3,)).check(3, 1) == ChoiceFinish(FinishReason.STOP, 3)
    assert rule(stop_token_ids=(3,)).check(3, 1) == ChoiceFinish(FinishReason.STOP, 3)


def test_stop_ids_count_from_the_output_token_after_min_tokens() -> None:
    waiting = rule(min_tokens=3, stop_token_ids=(7,))
    for token_id, finish in ((2, END_OF_SEQUENCE), (3, END_OF_SEQUENCE), (7, ChoiceFinish(FinishReason.STOP, 7))):
        assert [waiting.check(token_id, n) for n in (1, 2, 3, 4)] == [None, None, None, finish]


def test_max_tokens_one_ends_with_the_first_token() -> None:
    assert rule(max_tokens=1).check(5, 1) == LENGTH


def test_max_tokens_ends_exactly_at_its_number() -> None:
    assert [rule(max_tokens=3).check(5, n) for n in (1, 2, 3)] == [None, None, LENGTH]


def test_the_model_length_ends_a_choice_before_max_tokens() -> None:
    assert [rule(max_output_tokens=2).check(5, n) for n in (1, 2)] == [None, LENGTH]


def test_a_stop_token_at_max_tokens_is_a_stop() -> None:
    assert rule(max_tokens=1).check(2, 1) == END_OF_SEQUENCE


def test_min_tokens_does_not_extend_max_tokens() -> None:
    assert rule(max_tokens=2, min_tokens=2).check(2, 2) == LENGTH


WORDS = TokenTable([b"a", b"b.", b"</s>", b"", b"\xe4\xb8"], special_ids={2})


def accept(token_ids: list[int], **changes: object) -> tuple[list[str], ChoiceFinish | None]:
    params = replace(PARAMS, **changes)  # type: ignore[arg-type]
    stream = TextStream(WORDS, params.stop, params.include_stop)
    texts, finish = [], None
    for count, token_id in enumerate(token_ids, start=1):
        text, finish = accept_token(StopRule(params, EOS, 100), stream, token_id, count)
        texts.append(text)
    return texts, finish


def test_the_text_of_a_stop_token_that_is_not_special_is_left_out() -> None:
    assert accept([0, 1], stop_token_ids=(1,)) == (["a", ""], ChoiceFinish(FinishReason.STOP, 1))


def test_include_stop_keeps_the_text_of_a_stop_token() -> None:
    assert accept([0, 1], stop_token_ids=(1,), include_stop=True) == (["a", "b."], ChoiceFinish(FinishReason.STOP, 1))


def test_a_special_end_of_sequence_has_no_text_even_with_include_stop() -> None:
    assert accept([0, 2], include_stop=True) == (["a", ""], END_OF_SEQUENCE)


def test_a_stop_string_in_the_last_allowed_token_is_a_stop() -> None:
    assert accept([0, 1], max_tokens=2, stop=(".",)) == (["a", "b"], ChoiceFinish(FinishReason.STOP, "."))


def test_min_tokens_does_not_delay_a_stop_string() -> None:
    assert accept([1], min_tokens=5, stop=(".",)) == (["b"], ChoiceFinish(FinishReason.STOP, "."))


def test_text_held_for_a_stop_string_rides_with_the_last_token() -> None:
    assert accept([0, 1], max_tokens=2, stop=(".x",)) == (["a", "b."], LENGTH)
    assert accept([1, 2], stop=(".x",)) == (["b", "."], END_OF_SEQUENCE)


def test_a_match_that_waited_is_the_reason_when_the_choice_ends() -> None:
    assert accept([0, 1, 2], stop=("b.", "ab.c")) == (["", "", "a"], ChoiceFinish(FinishReason.STOP, "b."))


def test_an_incomplete_character_at_max_tokens_is_one_replacement() -> None:
    assert accept([4], max_tokens=1) == (["\ufffd"], LENGTH)
