"""What ends an output: the union of what a model's files say, and a sentence where they disagree."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from weir.models.check import check_model
from weir.models.end_tokens import EndTokens, end_tokens
from weir.models.errors import ModelFolderError
from weir.models.tokenizer import Tokenizer

from tests.unit.models import tiny, vocabularies

# <unk>, <s> and </s> are 0, 1 and 2 in the vocabulary of the tests.
NAMES = {"config": "config.json", "generation": "generation_config.json", "tokenizer": "tokenizer_config.json"}
NAMES |= {"map": "special_tokens_map.json"}


def named(folder: Path, **files: dict[str, Any]) -> EndTokens:
    vocabularies.byte_level().save(str(folder / "tokenizer.json"))
    for name, content in files.items():
        (folder / NAMES[name]).write_text(json.dumps(content))
    return end_tokens(folder, Tokenizer(folder))


def test_a_token_that_only_the_tokenizer_names_ends_an_output_too(tmp_path: Path) -> None:
    """A chat model whose config named <|endoftext|> went on past <|im_end|> to its limit."""
    ends = named(tmp_path, config={"eos_token_id": 0}, tokenizer={"eos_token": "</s>"})
    assert ends.ids == (0, 2)
    assert ends.beyond_transformers == (2,)
    assert ends.disagreement() == (
        "the model's files name different end tokens, and each of them ends an output: "
        "config.json says 0; tokenizer_config.json says 2"
    )


def test_every_file_counts_and_each_id_once(tmp_path: Path) -> None:
    ends = named(
        tmp_path,
        generation={"eos_token_id": [5, 2]},
        config={"eos_token_id": 7},
        tokenizer={"eos_token": {"content": "</s>"}, "added_tokens_decoder": {}},
        map={"eos_token": "<s>"},
    )
    assert ends.ids == (5, 2, 7, 1)
    # transformers generates by generation_config.json alone where that names any.
    assert ends.beyond_transformers == (7, 1)


@pytest.mark.parametrize(
    ("files", "ids"),
    [
        ({"config": {"eos_token_id": 2}, "tokenizer": {"eos_token": "</s>"}}, (2,)),
        ({"config": {"eos_token_id": None}, "generation": {}, "map": {"eos_token": "</s>"}}, (2,)),
        ({"config": {"eos_token_id": [3, 4]}, "generation": {"eos_token_id": [4, 3]}, "tokenizer": {}}, (4, 3)),
        ({"config": {}, "tokenizer": {"eos_token": None}}, ()),
        ({"config": {}, "tokenizer": {"eos_token": ""}}, ()),
    ],
)
def test_files_that_agree_or_say_nothing_are_no_disagreement(
    files: dict[str, dict[str, Any]], ids: tuple[int, ...], tmp_path: Path
) -> None:
    ends = named(tmp_path, **files)
    assert (ends.ids, ends.beyond_transformers[1:], ends.disagreement()) == (ids, (), None)


def test_an_end_token_that_is_no_token_is_said(tmp_path: Path) -> None:
    ends = named(tmp_path, config={"eos_token_id": 2}, tokenizer={"eos_token": "<|im_end|>"})
    assert ends.ids == (2,)
    assert "tokenizer_config.json says '<|im_end|>', which is no token" in (ends.disagreement() or "")


@pytest.mark.parametrize("value", ["2", [2, None], -1, True, 2.0, [[2]], {"id": 2}, 2**31, [2, "x"]])
@pytest.mark.parametrize("file", ["config", "generation"])
def test_an_end_token_of_another_type_or_range_is_refused_by_file(file: str, value: object, tmp_path: Path) -> None:
    """`"2"` and `[2, null]` passed readiness, and the first request killed the engine."""
    with pytest.raises(ModelFolderError, match=rf"{NAMES[file]}: eos_token_id must be a token id or a list"):
        named(tmp_path, **{file: {"eos_token_id": value}})


@pytest.mark.parametrize(
    ("generation", "level"), [({"eos_token_id": [0, 2]}, logging.INFO), ({"eos_token_id": 0}, logging.WARNING)]
)
def test_a_disagreement_is_logged_once_and_louder_where_transformers_would_go_on(
    generation: dict[str, Any], level: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = tiny.configs()["llama2"]
    config.vocab_size, config.eos_token_id = 420, 0
    tiny.save(tiny.make(config), tmp_path)
    vocabularies.save(vocabularies.byte_level(), tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    with caplog.at_level(logging.INFO):
        check_model(tmp_path)
    (record,) = caplog.records
    assert (record.levelno, "tokenizer_config.json says 2" in record.message) == (level, True)


def chat_model(folder: Path, template: str) -> None:
    """</s>, id 2, is its end token."""
    config = tiny.configs()["llama2"]
    config.vocab_size, config.eos_token_id = 420, 2
    config.save_pretrained(folder)
    vocabularies.save(vocabularies.byte_level(), folder, template)


TURN = "{% for m in messages %}[{{ m.role }}]{{ m.content }}END{% endfor %}"


@pytest.mark.parametrize(
    ("template", "warned"),
    [
        (TURN.replace("END", "</s>"), False),
        (TURN.replace("END", " </s>\n"), False),
        (TURN.replace("END", "<｜end｜>"), True),
        (TURN.replace("END", "\n<|user|>"), True),
        (TURN.replace("END", "\n"), False),
        ("{{ raise_exception('no answers') }}", False),
        ("{{ messages[0].content }}", False),
    ],
)
def test_a_template_that_ends_answers_with_no_end_token_is_said_at_the_start(
    template: str, warned: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    chat_model(tmp_path, template)
    check_model(tmp_path, random_weights=True)
    assert ["which no file names as an end token" in record.message for record in caplog.records] == [True] * warned
