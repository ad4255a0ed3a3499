"""Text and stops through the whole engine: the stream is the text, and ends at the right place for the right reason."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from weir.engine.detokenizer import TokenTable
from weir.engine.request import ChoiceFinish, FinishReason, SamplingParams

from tests.cases.conftest import TinyModel
from tests.cases.engines import Engine, ExactModel, make_core, some_tokens

STOP = ChoiceFinish(FinishReason.STOP)
LENGTH = ChoiceFinish(FinishReason.LENGTH)
PROMPT = (61, 62, 63)


class Speaker:
    """An engine whose model says given pieces of text, each a token of its own; token 0 ends a sequence."""

    def __init__(self, says: Mapping[str, Sequence[str | bytes]], *, ends: bool = True, **settings: int) -> None:
        table: list[bytes] = [b"</s>"]
        script: dict[tuple[int, ...], list[int]] = {}
        self.prompts: dict[str, tuple[int, ...]] = {}
        for number, (name, pieces) in enumerate(says.items()):
            tokens = list(range(len(table), len(table) + len(pieces)))
            table += [piece.encode() if isinstance(piece, str) else piece for piece in pieces]
            self.prompts[name] = (61, 62, number)
            script[self.prompts[name]] = [*tokens, 0] if ends else tokens
        model = ExactModel(vocab_size=max(64, len(table)), says=script)
        core = make_core(model, eos=(0,), table=TokenTable(table, special_ids={0}), **settings)  # type: ignore[arg-type]
        self.engine = Engine(core)

    def run(self, max_tokens: int = 30, **params: object) -> None:
        """Say everything at once, in one batch."""
        for name, prompt in self.prompts.items():
            self.engine.submit(name, prompt, max_tokens, **params)  # type: ignore[arg-type]
        self.engine.run()

    def texts(self, name: str) -> list[str]:
        """The text of each delta."""
        return [delta.text for delta in self.engine.deltas(name)]

    def end(self, name: str) -> tuple[str, ChoiceFinish | None]:
        """The whole text and how it ended."""
        return self.engine.text(name), self.engine.finish(name)


def stopped_by(stop: str | int) -> ChoiceFinish:
    return ChoiceFinish(FinishReason.STOP, stop)


# -- text ---------------------------------------------------------------------------------------------------------


def test_characters_that_are_cut_by_tokens_stream_whole_and_join_to_the_text() -> None:
    """dynamo#12630: "삼겹살" cut inside its last syllable came out as "삼겹�"."""
    data = "삼겹살".encode()
    speaker = Speaker({"cut": [data[:4], data[4:7], data[7:8], data[8:]]})
    speaker.run()
    assert speaker.texts("cut") == ["삼", "겹", "", "살", ""]
    assert speaker.end("cut") == ("삼겹살", STOP)


def test_text_that_was_sent_is_never_sent_again() -> None:
    """sglang#31598: deltas of "A 世" followed by half a character were joined to "A 世世ab"."""
    speaker = Speaker({"grows": [b"A \xe4\xb8\x96\xe4\xb8", b"a\xe4\xb8", b"b"]})
    speaker.run()
    assert speaker.texts("grows") == ["A 世", "�a", "�b", ""]


def test_a_token_that_is_no_text_hurts_its_own_request_only() -> None:
    """vllm#17448: one invalid byte raised "Invalid prefix encountered", and the whole batch was lost."""
    speaker = Speaker({"broken": [b"\xff", b"\xc3", b"\x28", "ok"], "sound": ["Grüße", " 世界", "!"]})
    speaker.run()
    assert speaker.end("broken") == ("��(ok", STOP)
    assert speaker.end("sound") == ("Grüße 世界!", STOP)


def test_a_character_that_never_completes_is_flushed_with_the_last_token() -> None:
    speaker = Speaker({"half": ["a", b"\xe4\xb8", b"\x96"]})
    speaker.run(max_tokens=2)
    assert speaker.texts("half") == ["a", "�"]
    assert speaker.engine.finish("half") == LENGTH


def test_a_character_that_the_prompt_began_comes_whole_with_the_output_of_every_choice() -> None:
    """A prompt that ended with bytes e6 97 was continued by a5, and each text began with U+FFFD."""
    table = TokenTable([b"</s>", b"x\xe6", b"\x97", b"\xa5", b"!", b"\xa6"], special_ids={0})
    prompts = {(1, 2): [3, 4, 0], (4, 1, 0, 2): [5, 4, 0], (4, 1): [4, 0]}
    engine = Engine(make_core(ExactModel(says=prompts), eos=(0,), table=table))
    for number, prompt in enumerate(prompts):
        engine.submit(f"{number}", prompt, 9, n=2)
    engine.run()
    for choice in (0, 1):
        assert [engine.text(f"{number}", choice) for number in range(3)] == ["日!", "旦!", "\ufffd!"]


def test_the_first_word_of_an_output_keeps_its_space_behind_a_prompt_through_a_preemption() -> None:
    """ "The river" and "▁was" were joined to "The riverwas"."""
    table = TokenTable([b"</s>", b" The", b" river", b" was", b" low"], {0}, strips_leading_space=True)
    says = {(1, 2): [3, 4, 3, 4, 3, 4, 0], (0,): [1, 2, 0], (7, 8): [4, 0]}
    engine = Engine(make_core(ExactModel(says=says), eos=(0,), table=table, max_running=1, preempt_lower_priority=True))
    engine.submit("low", (1, 2), 9, priority=9)
    for _ in range(3):
        engine.step()
    engine.submit("begins", (0,), 9, priority=0)
    engine.submit("no text", (7, 8), 9, priority=0)
    engine.run()
    assert engine.preemptions("low") == 1
    assert engine.text("low") == " was low was low was low"
    assert (engine.text("begins"), engine.text("no text")) == ("The river", "low")


def test_a_stop_string_may_hold_the_character_that_the_prompt_began_but_no_text_before_it() -> None:
    table = TokenTable([b"</s>", b"x\xe6", b"\x97", b"\xa5", b"!"], special_ids={0})
    engine = Engine(make_core(ExactModel(says={(1, 2): [3, 4, 4, 0]}), eos=(0,), table=table))
    for name, stop in (("whole", "日!"), ("before", "x日")):
        engine.submit(name, (1, 2), 9, stop=(stop,))
    engine.run()
    assert (engine.text("whole"), engine.finish("whole")) == ("", stopped_by("日!"))
    assert (engine.text("before"), engine.finish("before")) == ("日!!", STOP)


# -- stop strings -------------------------------------------------------------------------------------------------


def test_a_stop_string_that_spans_tokens_and_ends_inside_one_is_found_and_never_leaks() -> None:
    """vllm#3572: the stop string was compared with tokens, so it leaked, or was never found."""
    speaker = Speaker({"spans": ["one ", "<", "|en", "d|> two", " three"], "other": ["one ", "<|", "not|>"]})
    speaker.run(stop=("<|end|>",))
    assert speaker.texts("spans") == ["one ", "", "", ""]
    assert speaker.end("spans") == ("one ", stopped_by("<|end|>"))
    assert speaker.texts("other") == ["one ", "", "<|not|>", ""]


def test_a_stop_string_is_not_searched_in_the_prompt() -> None:
    table = TokenTable([b"</s>", b"x", b"END"], special_ids={0})
    engine = Engine(make_core(ExactModel(says={(1, 2): [1, 1, 2]}), table=table))
    engine.submit("a", (1, 2), 9, stop=("END",))
    engine.run()
    assert (engine.text("a"), engine.finish("a")) == ("xx", stopped_by("END"))


def test_text_held_for_a_stop_string_is_sent_when_it_is_refuted_or_at_the_end() -> None:
    """TGI#1254: the beginning of a stop string was streamed, and the client could not take it back."""
    speaker = Speaker({"refuted": ["a", "EN", "x"], "open": ["a", "EN"]})
    speaker.run(stop=("END",))
    assert speaker.texts("refuted") == ["a", "", "ENx", ""]
    assert speaker.texts("open") == ["a", "", "EN"]


def test_only_what_may_become_a_stop_string_is_held_back() -> None:
    """smg#2203: a fixed number of characters was held, so every token came late."""
    speaker = Speaker({"long": ["some", " text", " with\n", "no stop"]})
    speaker.run(stop=("\nand a stop string that is very long",))
    assert speaker.texts("long") == ["some", " text", " with", "\nno stop", ""]


def test_each_choice_stops_for_itself() -> None:
    table = TokenTable([b"</s>", *(bytes([64 + i]) for i in range(1, 64))], special_ids={0})
    model = ExactModel()
    engine = Engine(make_core(model, table=table))
    params = engine.submit("n", PROMPT[:1], 25, n=4, temperature=1.0, seed=3, stop=("K", "["))
    engine.run()
    for choice in range(4):
        tokens = model.continuation(PROMPT[:1], 25, params, choice)
        text = "".join(chr(64 + token) if token else "" for token in tokens)
        ends = [text.find(stop) for stop in ("K", "[") if stop in text]
        assert engine.text("n", choice) == (text[: min(ends)] if ends else text)
        assert engine.finish("n", choice) == (stopped_by(text[min(ends)]) if ends else LENGTH)


# -- stop tokens --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("include_stop", "text"), [(False, "one "), (True, "one stop")])
def test_the_text_of_a_stop_token_is_left_out_unless_it_is_asked_for(include_stop: bool, text: str) -> None:
    """vllm#14623: a stop token that is no special token stayed in the text."""
    speaker = Speaker({"a": ["one ", "stop", "never"]})
    speaker.run(stop_token_ids=(2,), include_stop=include_stop)
    assert speaker.end("a") == (text, stopped_by(2))
    assert speaker.engine.tokens("a") == [1, 2]


def test_several_end_of_sequence_ids_stay_out_for_exactly_min_tokens(tiny_model: TinyModel) -> None:
    """vllm#5849: only one of the ids was kept out, one token too long, or counted from the prompt.

    The model's own two ids and one of the request are made certain; the least certain one comes as soon as it may.
    """
    certain = ((2, 100.0), (410, 60.0), (7, 30.0))
    engine = tiny_model.engine()
    for count in (0, 1, 3):
        engine.submit(
            f"{count}", some_tokens(9), 10, temperature=1.0, min_tokens=count, logit_bias=certain, stop_token_ids=(7,)
        )
    engine.submit("plain", some_tokens(9), 5, logit_bias=((2, -100.0), (410, -100.0)))
    engine.run()
    for count in (0, 1, 3):
        *before, last = engine.tokens(f"{count}")
        assert len(before) == count
        assert not {2, 410, 7} & set(before)
        assert last == 2
        assert engine.finish(f"{count}") == STOP
    assert len(engine.tokens("plain")) == 5


def test_min_tokens_counts_on_through_a_preemption() -> None:
    engine = Engine(make_core(max_running=1, preempt_lower_priority=True, eos=(5, 6)))
    certain = ((5, 100.0), (6, 60.0))
    engine.submit("low", some_tokens(7), 20, priority=9, min_tokens=6, logit_bias=certain)
    for _ in range(4):
        engine.step()
    engine.submit("high", some_tokens(3), 3, priority=0)
    engine.run()
    assert engine.preemptions("low") == 1
    assert len(engine.tokens("low")) == 7
    assert engine.tokens("low")[-1] == 5


def test_an_end_token_that_only_the_tokenizer_names_ends_an_output_unless_it_is_ignored(
    tiny_model: TinyModel, tmp_path: Path
) -> None:
    """A chat model whose config named another token said its eight end tokens up to LENGTH, with empty text."""
    folder = tmp_path / "model"
    shutil.copytree(tiny_model.folder, folder)
    for name in ("config.json", "generation_config.json"):
        (folder / name).write_text(json.dumps(json.loads((folder / name).read_text()) | {"eos_token_id": 0}))
    engine = TinyModel(folder, tiny_model.reference).engine()
    assert engine.core.info.eos_token_ids == (0, 2)  # </s> of the tokenizer is 2
    for name, ignore in (("stops", False), ("ignores", True)):
        engine.submit(name, some_tokens(9), 8, logit_bias=((2, 100.0),), ignore_eos=ignore)
    engine.run()
    assert (engine.tokens("stops"), engine.finish("stops")) == ([2], STOP)
    assert (engine.tokens("ignores"), engine.finish("ignores")) == ([2] * 8, LENGTH)


def test_ignore_eos_passes_over_every_id_of_the_model_and_none_of_the_request(tiny_model: TinyModel) -> None:
    """vllm#4589: with a list in generation_config, the second id still stopped."""
    engine = tiny_model.engine()
    for name, token in (("first id", 2), ("second id", 410)):
        engine.submit(name, some_tokens(9), 4, ignore_eos=True, logit_bias=((token, 100.0),))
        engine.submit(
            f"{name} named", some_tokens(9), 4, ignore_eos=True, logit_bias=((token, 100.0),), stop_token_ids=(token,)
        )
    engine.run()
    for name, token in (("first id", 2), ("second id", 410)):
        assert (engine.tokens(name), engine.finish(name)) == ([token] * 4, LENGTH)
        assert (engine.tokens(f"{name} named"), engine.finish(f"{name} named")) == ([token], stopped_by(token))


def test_a_stop_in_the_token_that_prefill_samples_ends_the_request_there() -> None:
    speaker = Speaker({"at once": ["END"], "no text": []})
    speaker.run(stop=("END",))
    assert speaker.end("at once") == ("", stopped_by("END"))
    assert speaker.end("no text") == ("", STOP)
    assert speaker.engine.core.snapshot().step == 1


def test_the_streamed_deltas_are_the_same_text_in_any_chunk_size_and_company() -> None:
    said = {
        f"r{i}": [*"The weir held; 世界 ", "👩‍👩‍👧".encode()[: 5 + i], "👩‍👩‍👧".encode()[5 + i :]][i:] for i in range(3)
    }
    alone = {}
    for name, pieces in said.items():
        speaker = Speaker({name: pieces})
        speaker.run()
        alone[name] = speaker.texts(name)
    together = Speaker(said, max_batch_tokens=9)
    together.run()
    assert {name: together.texts(name) for name in said} == alone
    assert all("".join(texts).endswith("👩‍👩‍👧") for texts in alone.values())


def test_the_engine_says_what_the_definition_says_when_nothing_stops_it() -> None:
    engine = Engine(make_core())
    params = engine.submit("a", PROMPT, 12)
    engine.run()
    assert params == SamplingParams(12, temperature=0.0)
    assert engine.tokens("a") == ExactModel().continuation(PROMPT, 12, params)
