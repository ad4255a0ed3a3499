"""Tokens become text one at a time: byte-exact, never taken back, never an exception."""

from __future__ import annotations

import pytest
from weir.engine.detokenizer import TextStart, TextStream, TokenTable

from tests.unit.text.vocabularies import Vocabulary

BYTES = TokenTable([bytes([byte]) for byte in range(256)])


def deltas(table: TokenTable, ids: list[int], prompt: list[int] | None = None) -> list[str]:
    stream = TextStream(table, start=table.after(prompt or []))
    return [*(stream.push(token_id) for token_id in ids), stream.finish()]


def text(table: TokenTable, ids: list[int]) -> str:
    return "".join(deltas(table, ids))


def test_each_byte_of_a_character_waits_for_the_last() -> None:
    assert deltas(BYTES, list("é世🌍".encode())) == ["", "é", "", "", "世", "", "", "", "🌍", ""]


def test_a_whole_character_is_sent_with_its_token() -> None:
    table = TokenTable(["世".encode(), b"ab", "삼".encode()])
    assert deltas(table, [0, 1, 2, 0]) == ["世", "ab", "삼", "世", ""]


def test_growing_text_with_an_incomplete_character_never_retreats() -> None:
    """Deltas "A 世�", "A 世a�", "A 世ab" were once joined to "A 世世ab": sent text is final here."""
    table = TokenTable([b"A \xe4\xb8\x96\xe4\xb8", b"a\xe4\xb8", b"b"])
    assert deltas(table, [0, 1, 2]) == ["A 世", "\ufffda", "\ufffdb", ""]


def test_hangul_cut_at_a_chunk_edge_is_whole() -> None:
    """ "삼겹살" streamed as "삼겹�": the last syllable's bytes came in two tokens."""
    data = "삼겹살".encode()
    table = TokenTable([data[:7], data[7:]])
    assert deltas(table, [0, 1]) == ["삼겹", "살", ""]


def test_an_emoji_family_joined_by_zwj_survives_any_token_boundary() -> None:
    family = "👨‍👩‍👧‍👦"
    data = family.encode()
    for cut in range(1, len(data)):
        table = TokenTable([data[:cut], data[cut:]])
        assert text(table, [0, 1]) == family


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        # Unicode 16, table 3-8 to 3-11: U+FFFD for non-shortest forms, surrogates, other ill-formed and truncated ones.
        ("C0 AF E0 80 BF F0 81 82 41", "\ufffd" * 8 + "A"),
        ("ED A0 80 ED BF BF ED AF 41", "\ufffd" * 8 + "A"),
        ("F4 91 92 93 FF 41 80 BF 42", "\ufffd" * 5 + "A" + "\ufffd" * 2 + "B"),
        ("E1 80 E2 F0 91 92 F1 BF 41", "\ufffd" * 4 + "A"),
    ],
)
def test_ill_formed_bytes_become_one_replacement_for_each_maximal_part(data: str, expected: str) -> None:
    """A token of invalid UTF-8 once raised and ended the whole batch."""
    assert text(BYTES, list(bytes.fromhex(data))) == expected
    assert text(TokenTable([bytes.fromhex(data)]), [0]) == expected


def test_an_incomplete_character_at_the_end_is_one_replacement() -> None:
    assert deltas(BYTES, list("世".encode()[:2])) == ["", "", "\ufffd"]


def test_an_incomplete_character_is_refuted_by_the_next_one() -> None:
    assert deltas(BYTES, [0xE4, 0xB8, ord("a")]) == ["", "", "\ufffda", ""]


def test_special_tokens_have_no_text_and_split_no_character() -> None:
    table = TokenTable([b"\xe4\xb8", b"\x96", b"<|end|>"], special_ids={2})
    assert deltas(table, [0, 2, 1]) == ["", "", "世", ""]


def test_ids_of_a_padded_vocabulary_have_no_text() -> None:
    table = TokenTable([b"a"], special_ids={7})
    assert deltas(table, [0, 5, 0]) == ["a", "", "a", ""]


def test_only_the_first_space_is_stripped_and_only_once() -> None:
    table = TokenTable([b"  the", b" river", b""], special_ids={2}, strips_leading_space=True)
    assert deltas(table, [2, 0, 1]) == ["", " the", " river", ""]


def test_a_text_that_begins_without_a_space_loses_nothing() -> None:
    table = TokenTable([b"the", b" river"], strips_leading_space=True)
    assert deltas(table, [0, 1]) == ["the", " river", ""]


def test_byte_level_tokens_keep_their_leading_space() -> None:
    assert deltas(TokenTable([b" river"]), [0]) == [" river", ""]


def test_byte_fallback_tokens_join_to_characters(sentencepiece_vocabulary: Vocabulary) -> None:
    ids = sentencepiece_vocabulary.encode("the 살 world")
    assert len(ids) > 10  # the Hangul syllable is three byte tokens
    assert text(sentencepiece_vocabulary.table, ids) == "the 살 world"
    assert sentencepiece_vocabulary.decode(ids) == "the 살 world"


def test_encoded_text_comes_back_unchanged(vocabulary: Vocabulary) -> None:
    for sample in ("The weir held; café 世界.", "삼겹살 👨‍👩‍👧‍👦 🇫🇷 👩🏽‍🚀", "  two spaces\n\ttab", "مرحبا"):
        # Metaspace takes a space at the beginning for the one that it would have put there.
        kept = sample.removeprefix(" ") if vocabulary.table.first_token_bytes is not None else sample
        assert text(vocabulary.table, vocabulary.encode(sample)) == kept


def test_every_mark_of_the_first_token_is_dropped_where_the_tokenizer_drops_them() -> None:
    later = [b"  ", b" the", b"\xe4", b"<s>", b" "]
    table = TokenTable(later, {3}, first_token_bytes=[b"", b"the", b"\xe4", b"<s>", b" "])
    assert deltas(table, [0, 1]) == ["", " the", ""]
    assert deltas(table, [3, 1, 1]) == ["", "the", " the", ""]
    assert deltas(table, [4, 1]) == [" ", " the", ""]
    assert deltas(table, [2, 1]) == ["", "\ufffd the", ""]
    assert deltas(table, [1], prompt=[3, 3]) == ["the", ""]
    assert deltas(table, [1], prompt=[3, 0]) == [" the", ""]


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_a_character_that_the_prompt_began_is_completed_by_the_output(cut: int) -> None:
    """A prompt that ended with bytes e6 97 was continued by a5, and the text began with U+FFFD."""
    data = "🌍!".encode()
    assert "".join(deltas(BYTES, list(data[cut:]), prompt=list(b"the " + data[:cut]))) == "🌍!"


def test_a_character_of_the_prompt_that_is_never_completed_is_part_of_the_output() -> None:
    assert deltas(BYTES, [ord("a")], prompt=[0xE6, 0x97]) == ["\ufffda", ""]
    assert deltas(BYTES, [], prompt=[0xE6, 0x97]) == ["\ufffd"]


@pytest.mark.parametrize("prompt", [b"", b"a", "世".encode(), b"\xff", b"\xc3\x28", b"\xed\xa0", b"\xa5", b"\xf5\x80"])
def test_a_prompt_that_ends_with_a_whole_character_or_with_none_adds_nothing(prompt: bytes) -> None:
    assert deltas(BYTES, [ord("a")], prompt=list(prompt)) == ["a", ""]


def test_the_beginning_of_a_character_is_found_behind_tokens_without_text() -> None:
    table = TokenTable([b"x\xe6", b"\x97", b"\xa5", b"<|mark|>"], special_ids={3})
    for prompt in ([0, 1], [0, 3, 1, 3, 3], [2, 0, 9, 1, 9]):
        assert deltas(table, [2], prompt=prompt) == ["日", ""]


def test_the_first_word_of_an_output_keeps_its_space_behind_a_prompt_with_text() -> None:
    """ "The river" and " was" were joined to "The riverwas"."""
    table = TokenTable([b"<s>", b" The", b" river", b" was"], {0}, strips_leading_space=True)
    assert deltas(table, [3], prompt=[0, 1, 2]) == [" was", ""]
    assert deltas(table, [1, 2], prompt=[0, 0]) == ["The", " river", ""]


def test_a_prompt_is_read_no_further_than_one_character_from_its_end() -> None:
    class Watched(list[int]):
        read = 0

        def __reversed__(self):  # type: ignore[no-untyped-def]
            for token_id in list.__reversed__(self):
                self.read += 1
                yield token_id

    prompt = Watched([ord("a")] * 1000 + [0xE6, 0x97])
    assert BYTES.after(prompt) == TextStart(b"\xe6\x97", first_word=False)
    assert prompt.read == 3
