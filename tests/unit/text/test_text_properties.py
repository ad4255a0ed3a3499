"""For any tokens: the deltas concatenate to the unary text, which is the tokenizer's own, cut at the leftmost stop."""

from __future__ import annotations

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from weir.engine.detokenizer import TextStream
from weir.engine.stop_strings import StopScanner, compile_stop_strings

from tests.unit.text.vocabularies import Vocabulary

over_vocabularies = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
SAMPLES = st.sampled_from(["the river, ", "삼겹살", "👨‍👩‍👧‍👦", "👩🏽‍🚀", "世世ab", "café ", "  ", "مرحبا", "\n\n"])


@st.composite
def token_ids(draw: st.DrawFn, vocabulary: Vocabulary) -> list[int]:
    """Random ids, with real text cut at random places among them."""
    ids: list[int] = []
    for _ in range(draw(st.integers(1, 4))):
        ids += draw(st.lists(st.integers(0, vocabulary.size - 1), max_size=8))
        encoded = vocabulary.encode(draw(SAMPLES))
        ids += encoded[draw(st.integers(0, 2)) : len(encoded) - draw(st.integers(0, 2))]
    return ids


@st.composite
def valid_ids(draw: st.DrawFn, vocabulary: Vocabulary) -> list[int]:
    """Ids whose bytes are UTF-8 as a whole: real text, between tokens that are whole characters or special."""
    alone = vocabulary.table.alone
    ids: list[int] = []
    for sample in draw(st.lists(SAMPLES, min_size=1, max_size=4)):
        drawn = draw(st.lists(st.integers(0, vocabulary.size - 1), max_size=9))
        ids += [token_id for token_id in drawn if alone[token_id] is not None]
        ids += vocabulary.encode(sample)
    return ids


def unary_text(vocabulary: Vocabulary, ids: list[int]) -> str:
    """All bytes at once, by the rule for the first word."""
    ids = [token_id for token_id in ids if vocabulary.table.token_bytes[token_id]]
    data = vocabulary.bytes_of(ids)
    if ids and vocabulary.table.first_token_bytes is not None:
        data = vocabulary.table.first_token_bytes[ids[0]] + vocabulary.bytes_of(ids[1:])
    whole = data.decode(errors="replace")
    return whole.removeprefix(" ") if vocabulary.table.strips_leading_space else whole


def stream_all(stream: TextStream, ids: list[int]) -> str:
    return "".join(stream.push(token_id) for token_id in ids) + stream.finish()


def complete_text(vocabulary: Vocabulary, prompt: list[int]) -> str:
    """The tokenizer's own text of a prompt, up to the character that it leaves incomplete.

    Byte fallback gives up a whole run of bytes for one that is missing, so the run is also tried without its end.
    """
    tries = (vocabulary.decode(prompt[: len(prompt) - dropped]).rstrip("\ufffd") for dropped in range(4))
    return max(tries, key=len)


def cut_at_leftmost(text: str, stops: list[str], include_stop: bool) -> tuple[str, str | None]:
    found = [(text.find(stop), len(stop), stop) for stop in stops if stop in text]
    if not found:
        return text, None
    start, length, stop = min(found)
    return text[: start + length * include_stop], stop


@over_vocabularies
@given(data=st.data())
def test_deltas_concatenate_to_the_decode_of_all_bytes(vocabulary: Vocabulary, data: st.DataObject) -> None:
    ids = data.draw(token_ids(vocabulary))
    assert stream_all(TextStream(vocabulary.table), ids) == unary_text(vocabulary, ids)


@over_vocabularies
@given(data=st.data())
def test_valid_utf8_equals_the_tokenizers_own_decode(vocabulary: Vocabulary, data: st.DataObject) -> None:
    ids = data.draw(valid_ids(vocabulary))
    assert stream_all(TextStream(vocabulary.table), ids) == vocabulary.decode(ids)


@over_vocabularies
@given(data=st.data())
def test_prompt_and_output_join_to_the_tokenizers_own_decode(vocabulary: Vocabulary, data: st.DataObject) -> None:
    """Wherever the prompt ends: within a character, behind special tokens only, before the first word."""
    ids = data.draw(valid_ids(vocabulary))
    cut = data.draw(st.integers(0, len(ids)))
    prompt, output = ids[:cut], ids[cut:]
    text = stream_all(TextStream(vocabulary.table, start=vocabulary.table.after(prompt)), output)
    assert complete_text(vocabulary, prompt) + text == vocabulary.decode(ids)


@over_vocabularies
@given(data=st.data())
def test_any_prompt_and_output_join_to_the_decode_of_all_bytes(vocabulary: Vocabulary, data: st.DataObject) -> None:
    ids = data.draw(token_ids(vocabulary))
    cut = data.draw(st.integers(0, len(ids)))
    prompt, output = ids[:cut], ids[cut:]
    text = stream_all(TextStream(vocabulary.table, start=vocabulary.table.after(prompt)), output)
    whole = unary_text(vocabulary, ids)
    assert whole.endswith(text)
    # What is left of the prompt is all of it but an incomplete character, which decodes to one U+FFFD.
    assert unary_text(vocabulary, prompt) in (whole.removesuffix(text), whole.removesuffix(text) + "\ufffd")


@over_vocabularies
@given(data=st.data())
def test_stops_match_the_output_alone_whatever_the_prompt(vocabulary: Vocabulary, data: st.DataObject) -> None:
    ids = data.draw(valid_ids(vocabulary))
    cut = data.draw(st.integers(0, len(ids)))
    start = vocabulary.table.after(ids[:cut])
    text = stream_all(TextStream(vocabulary.table, start=start), ids[cut:])
    whole = vocabulary.decode(ids)
    assume(whole)
    place = data.draw(st.integers(0, len(whole) - 1))
    stop = whole[place : place + data.draw(st.integers(1, 6))]
    stream = TextStream(vocabulary.table, (stop,), start=start)
    assert (stream_all(stream, ids[cut:]), stream.stopped) == cut_at_leftmost(text, [stop], include_stop=False)


@over_vocabularies
@given(data=st.data())
def test_stops_cut_the_unary_text_at_the_leftmost_match(vocabulary: Vocabulary, data: st.DataObject) -> None:
    ids = data.draw(token_ids(vocabulary))
    text = unary_text(vocabulary, ids)
    assume(text)
    stops: list[str] = []
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(text) - 1))
        stop = text[start : start + data.draw(st.integers(1, 6))]
        stops.append(stop + data.draw(st.sampled_from(["", "", "?"])))
    include_stop = data.draw(st.booleans())
    stream = TextStream(vocabulary.table, tuple(stops), include_stop)
    streamed = stream_all(stream, ids)
    assert (streamed, stream.stopped) == cut_at_leftmost(text, stops, include_stop)


@settings(max_examples=500, deadline=None)
@given(
    pieces=st.lists(st.text("abc", max_size=4), max_size=12),
    stops=st.lists(st.text("abc", min_size=1, max_size=5), min_size=1, max_size=4),
    include_stop=st.booleans(),
)
def test_overlapping_stops_are_cut_as_if_the_text_were_whole(
    pieces: list[str], stops: list[str], include_stop: bool
) -> None:
    scanner = StopScanner(compile_stop_strings(tuple(stops)), include_stop)
    seen, sent = "", ""
    for piece in pieces:
        seen += piece
        sent += scanner.push(piece)
        if scanner.found is not None:
            break
        held = seen[len(sent) :]
        longest = max(
            n
            for n in range(len(seen) + 1)
            if any(len(stop) > n and stop.startswith(seen[len(seen) - n :]) for stop in stops)
        )
        assert len(held) == longest
    else:
        sent += scanner.finish()
    assert (sent, scanner.found) == cut_at_leftmost("".join(pieces), stops, include_stop)
