"""Token ids against transformers, and bytes that join to the text again."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as HfTokenizer
from weir.models.errors import ModelError, ModelFolderError, PromptError, TokenizerError
from weir.models.tokenizer import Tokenizer

from tests.unit.models import vocabularies

TEXTS = [
    "",
    "the river",
    "  two  spaces and 12 digits\n\ttabs\r\n",
    "Größe, naïve, e\u0301, ﬁ",
    "河流流向大海",
    "🙂👩‍👩‍👧 flags 🇩🇪",
    "<s>the</s> <|user|> [tool] <｜end｜>",
    "\x00\x7f\u200b\ufeff",
]
CHAT = "{% for m in messages %}{{ '<|user|>' + m.role + ': ' + m.content + '</s>' }}{% endfor %}"


@pytest.fixture(scope="module", params=["byte_level", "sentencepiece"])
def definition(request: pytest.FixtureRequest) -> HfTokenizer:
    built: HfTokenizer = getattr(vocabularies, request.param)()
    return built


@pytest.mark.parametrize("text", TEXTS)
def test_ids_equal_those_of_transformers(definition: HfTokenizer, text: str, tmp_path: Path) -> None:
    expected = vocabularies.save(definition, tmp_path)
    assert Tokenizer(tmp_path).encode(text) == expected(text)["input_ids"]


@pytest.mark.parametrize("text", TEXTS)
def test_the_bytes_of_the_tokens_join_to_what_the_tokenizer_decodes(
    definition: HfTokenizer, text: str, tmp_path: Path
) -> None:
    vocabularies.save(definition, tmp_path)
    tokenizer = Tokenizer(tmp_path)
    ids = definition.encode(text, add_special_tokens=False).ids
    joined = b"".join(tokenizer.token_bytes[token_id] for token_id in ids).decode()
    if tokenizer.strips_leading_space:
        joined = joined.removeprefix(" ")
    assert joined == definition.decode(ids, skip_special_tokens=False)
    assert joined == text or "<s>" in text


def test_only_the_sentencepiece_kind_changes_a_leading_space(tmp_path: Path) -> None:
    vocabularies.save(vocabularies.byte_level(), tmp_path / "a")
    vocabularies.save(vocabularies.sentencepiece(), tmp_path / "b")
    assert not Tokenizer(tmp_path / "a").strips_leading_space
    assert Tokenizer(tmp_path / "b").strips_leading_space


def test_metaspace_takes_its_marks_and_no_other_space_from_the_first_token(tmp_path: Path) -> None:
    definition = vocabularies.sentencepiece()
    definition.add_tokens([AddedToken("a b", normalized=False)])
    names = ("▁the", "▁▁", "<0x20>", "a b", "th")
    for scheme in ("always", "first", "never"):
        definition.decoder = decoders.Sequence([decoders.Metaspace(prepend_scheme=scheme), decoders.ByteFallback()])
        definition.save(str(tmp_path / "tokenizer.json"))
        tokenizer = Tokenizer(tmp_path)
        ids = [definition.token_to_id(name) for name in names]
        assert not tokenizer.strips_leading_space
        first = tokenizer.first_token_bytes or tokenizer.token_bytes
        assert [first[i].decode() for i in ids] == [definition.decode([i]) for i in ids]
        assert [tokenizer.token_bytes[i] for i in ids] == [b" the", b"  ", b" ", b"a b", b"th"]


def test_added_tokens_of_spaces_are_spaces_in_a_sentencepiece_vocabulary(tmp_path: Path) -> None:
    definition = vocabularies.sentencepiece()
    definition.add_tokens([AddedToken("▁▁▁▁", normalized=False), AddedToken("▁[call]", normalized=False)])
    vocabularies.save(definition, tmp_path)
    token_bytes = Tokenizer(tmp_path).token_bytes
    assert token_bytes[-2:] == [b"    ", b" [call]"]
    count = len(token_bytes)
    assert definition.decode([4 + ord("a"), count - 2, count - 1]) == "b     [call]"


def test_a_bos_is_added_once_when_the_tokenizer_adds_one_and_never_by_a_chat(tmp_path: Path) -> None:
    expected = vocabularies.save(vocabularies.sentencepiece(), tmp_path, CHAT)
    tokenizer = Tokenizer(tmp_path)
    assert tokenizer.encode("the")[0] == 1
    assert tokenizer.encode("the").count(1) == 1
    messages = [{"role": "user", "content": "the river"}]
    ids = tokenizer.encode_chat(messages)
    assert 1 not in ids
    assert ids == expected.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]


def test_added_tokens_stand_for_their_text_and_special_ones_are_known(tmp_path: Path) -> None:
    vocabularies.save(vocabularies.byte_level(), tmp_path)
    tokenizer = Tokenizer(tmp_path)
    user, tool, end = (tokenizer.encode(text)[0] for text in ("<|user|>", "[tool]", "<｜end｜>"))
    assert [tokenizer.token_bytes[i] for i in (user, tool, end)] == [b"<|user|>", b"[tool]", "<｜end｜>".encode()]
    assert tokenizer.special_ids == {0, 1, 2, user, end}
    assert tokenizer.vocab_size == end + 1


def test_ids_that_no_token_has_are_without_bytes(tmp_path: Path) -> None:
    definition = HfTokenizer(models.BPE({"a": 0, "b": 5}, []))
    definition.pre_tokenizer, definition.decoder = pre_tokenizers.ByteLevel(False), decoders.ByteLevel()
    definition.save(str(tmp_path / "tokenizer.json"))
    assert Tokenizer(tmp_path).token_bytes == [b"a", b"", b"", b"", b"", b"b"]


def test_a_folder_with_only_tokenizer_json_works_but_has_no_chat(tmp_path: Path) -> None:
    vocabularies.byte_level().save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer(tmp_path)
    assert b"".join(tokenizer.token_bytes[i] for i in tokenizer.encode("the river")) == b"the river"
    with pytest.raises(PromptError, match="no chat template"):
        tokenizer.encode_chat([{"role": "user", "content": "hello"}])


def test_truncation_and_padding_of_training_are_switched_off(tmp_path: Path) -> None:
    definition = vocabularies.byte_level()
    definition.enable_truncation(4)
    definition.enable_padding(length=16)
    definition.save(str(tmp_path / "tokenizer.json"))
    ids = Tokenizer(tmp_path).encode("the river runs to the sea again")
    assert 4 < len(ids) < 16


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb", "ok \ud83d"])
def test_a_lone_surrogate_is_refused_with_its_place(definition: HfTokenizer, text: str, tmp_path: Path) -> None:
    vocabularies.save(definition, tmp_path)
    with pytest.raises(PromptError, match=r"character \d+ is the lone surrogate U\+D[8-F]"):
        Tokenizer(tmp_path).encode(text)


@pytest.fixture(scope="module")
def byte_level_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("byte_level")
    vocabularies.save(vocabularies.byte_level(), folder)
    return Tokenizer(folder)


@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_any_text_survives_byte_level_tokens(byte_level_tokenizer: Tokenizer, text: str) -> None:
    ids = byte_level_tokenizer.encode(text)
    assert b"".join(byte_level_tokenizer.token_bytes[i] for i in ids) == text.encode()


def test_another_kind_of_tokenizer_is_refused_by_its_decoder(tmp_path: Path) -> None:
    definition = HfTokenizer(models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    definition.decoder = decoders.WordPiece()
    definition.add_special_tokens([AddedToken("[UNK]")])
    definition.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(TokenizerError, match="decoder WordPiece is not supported"):
        Tokenizer(tmp_path)


def test_a_missing_or_damaged_tokenizer_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelFolderError, match=r"no tokenizer\.json"):
        Tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text(json.dumps({"version": "1.0"}))
    with pytest.raises(TokenizerError, match=r"cannot load .*tokenizer\.json"):
        Tokenizer(tmp_path)


def test_a_token_id_that_would_take_a_table_of_gigabytes_is_refused(tmp_path: Path) -> None:
    definition = json.loads(vocabularies.byte_level().to_str())
    definition["model"]["vocab"]["far"] = 10**9
    (tmp_path / "tokenizer.json").write_text(json.dumps(definition))
    with pytest.raises(TokenizerError, match="token id 1000000000 is not below 4194304"):
        Tokenizer(tmp_path)


def test_a_definition_on_which_the_library_panics_is_refused(tmp_path: Path) -> None:
    definition = json.loads(vocabularies.sentencepiece().to_str())
    definition["post_processor"]["special_tokens"] = {}
    (tmp_path / "tokenizer.json").write_text(json.dumps(definition))
    with pytest.raises(TokenizerError, match=r"cannot load .*tokenizer\.json"):
        Tokenizer(tmp_path)


ODD: list[Any] = [None, True, 0, -1, 2**40, 1.5, float("nan"), "", "x", "\ud800", [], {}, ["a"], [["a", 1.0]], {"a": 1}]
ODD += [{"type": kind} for kind in ("ByteLevel", "Metaspace", "Sequence", "Replace", {"type": "Fuse"})]


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths to what is in a JSON value, to the first entries of what is long."""
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, entry in islice(entries, 12):
        yield (*path, key)
        yield from _places(entry, (*path, key))


@pytest.mark.parametrize("build", [vocabularies.byte_level, vocabularies.sentencepiece])
def test_any_damage_to_a_definition_is_read_or_refused_as_the_tokenizers(
    build: Callable[[], HfTokenizer], tmp_path: Path
) -> None:
    """Every value in a tokenizer.json in turn is another one, of every kind, or is gone."""
    whole = build().to_str()
    chance = Random(0)
    for path in _places(json.loads(whole)):
        for odd in [*chance.sample(ODD, 4), "gone"]:
            definition = json.loads(whole)
            within = definition
            for key in path[:-1]:
                within = within[key]
            if odd == "gone":
                del within[path[-1]]
            else:
                within[path[-1]] = odd
            (tmp_path / "tokenizer.json").write_text(json.dumps(definition))
            with contextlib.suppress(ModelError):
                assert Tokenizer(tmp_path).vocab_size < 2**22


@pytest.mark.model
def test_the_demo_model_tokenises_as_transformers_does(model_dir: Path) -> None:
    from transformers import AutoTokenizer

    expected, tokenizer = AutoTokenizer.from_pretrained(model_dir), Tokenizer(model_dir)
    for text in [*TEXTS, "x  12 + 345 = 357", "<|im_start|>user\nhi<|im_end|>"]:
        ids = tokenizer.encode(text)
        assert ids == expected(text)["input_ids"]
        assert b"".join(tokenizer.token_bytes[i] for i in ids) == text.encode()
    # SmolLM2 splits numbers into digits before BPE.
    assert tokenizer.encode("x  12") == [tokenizer.encode(part)[0] for part in ("x", "  ", "1", "2")]
    for messages in (
        [{"role": "user", "content": "Why is the sky blue? 你好"}],
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "a<|im_end|>b"}],
    ):
        ids = tokenizer.encode_chat(messages)
        assert ids == expected.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
    assert tokenizer.token_bytes[2] == b"<|im_end|>"
    assert tokenizer.special_ids == frozenset(range(17))
    assert not tokenizer.strips_leading_space
    assert tokenizer.first_token_bytes is None
