"""What random damage found in the files of a model: each is a typed error now, in words that fit on a screen."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import pytest
from weir.models.chat_template import ChatTemplate
from weir.models.checkpoint import SHARD_INDEX, find_checkpoint
from weir.models.end_tokens import end_tokens
from weir.models.errors import ModelError, ModelFolderError, PromptError, TokenizerError
from weir.models.spec import ModelSpec
from weir.models.tokenizer import Tokenizer

from tests.unit.models import vocabularies

MESSAGES = [{"role": "user", "content": "Why?"}]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A byte-level tokenizer."""
    vocabularies.save(vocabularies.byte_level(), tmp_path, "{{ messages[0].content }}")
    return tmp_path


def change(file: Path, **values: object) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def test_a_template_that_is_not_utf8_is_a_damaged_file(folder: Path) -> None:
    (folder / "chat_template.jinja").write_bytes(b"{{ messages }}\xed\xa0\x80")
    with pytest.raises(ModelFolderError, match=r"cannot read .*chat_template\.jinja"):
        Tokenizer(folder)


@pytest.mark.parametrize(
    "templates", [[3], ["x"], [{"name": "default"}], [{"template": "x"}], [{"name": ["default"], "template": "x"}], {}]
)
def test_a_list_of_templates_that_holds_something_else_names_no_template(folder: Path, templates: object) -> None:
    (folder / "chat_template.jinja").unlink()
    change(folder / "tokenizer_config.json", chat_template=templates)
    with pytest.raises(PromptError, match="no chat template"):
        Tokenizer(folder).encode_chat(MESSAGES)


@pytest.mark.parametrize("source", ["{{ " + "(" * 3000 + ")" * 3000 + " }}", "{{ namespace(a=1, a=2) }}"])
def test_a_template_that_python_cannot_compile_is_the_models_fault(source: str) -> None:
    with pytest.raises(TokenizerError, match="chat template"):
        ChatTemplate(source, {})


@pytest.mark.parametrize("source", ["{{ cycler() }}", "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"])
def test_a_template_that_fails_in_an_unusual_way_is_a_prompt_error(source: str) -> None:
    """`cycler()` is a RuntimeError and endless recursion a RecursionError; both ended calls as INTERNAL."""
    with pytest.raises(PromptError, match="chat template refuses"):
        ChatTemplate(source, {}).render(MESSAGES)


@pytest.mark.parametrize("expression", ["'a' * 300000000", "'a' | center(300000000)", "('a' * 300000000) | length"])
def test_nothing_of_a_template_is_computed_before_there_are_limits(expression: str) -> None:
    tracemalloc.start()
    with pytest.raises(TokenizerError, match="the chat template renders no message"):
        ChatTemplate("{{ " + expression + " }}{% if " + expression + " %}{% endif %}", {})
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 30_000_000


def test_a_token_id_beyond_any_vocabulary_takes_no_memory(folder: Path) -> None:
    definition = json.loads((folder / "tokenizer.json").read_text())
    definition["model"]["vocab"]["the"] = 2**31
    (folder / "tokenizer.json").write_text(json.dumps(definition))
    with pytest.raises(TokenizerError, match="token id 2147483648 is not below 4194304"):
        Tokenizer(folder)


def test_a_decoder_that_does_not_say_what_it_is_is_refused(folder: Path) -> None:
    """The library guesses from the other keys."""
    change(folder / "tokenizer.json", decoder={"decoders": [{"type": "ByteLevel"}]})
    with pytest.raises(TokenizerError, match=r"tokenizer\.json"):
        Tokenizer(folder)


def test_an_end_token_that_is_a_lone_surrogate_is_no_token(folder: Path) -> None:
    change(folder / "tokenizer_config.json", eos_token="\ud800")
    ends = end_tokens(folder, Tokenizer(folder))
    assert ends.unknown["tokenizer_config.json"] == "\ud800"


def test_a_text_that_the_tokenizer_fails_on_is_a_prompt_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The unknown token that a model names may not be there; the library finds out at the first unknown character."""
    vocabularies.save(vocabularies.sentencepiece(), tmp_path)
    definition = json.loads((tmp_path / "tokenizer.json").read_text())
    definition["model"] |= {"unk_token": "<nothing>", "byte_fallback": False}
    (tmp_path / "tokenizer.json").write_text(json.dumps(definition))
    with pytest.raises(TokenizerError, match="the tokenizers library fails on it"):
        Tokenizer(tmp_path)  # the sample that is tried at the start has such a character
    monkeypatch.setattr("weir.models.tokenizer._SAMPLE", "the river")
    with pytest.raises(PromptError, match="tokenizer fails on this text"):
        Tokenizer(tmp_path).encode("河 Ж")


def test_a_panic_of_the_tokenizer_library_is_the_models_fault(tmp_path: Path) -> None:
    """It is no Exception, and ended the process: here of a special token that the post-processor does not know."""
    vocabularies.save(vocabularies.sentencepiece(), tmp_path)
    definition = json.loads((tmp_path / "tokenizer.json").read_text())
    definition["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [],
        "special_tokens": {},
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(definition))
    with pytest.raises(TokenizerError, match="the tokenizers library fails on it"):
        Tokenizer(tmp_path)


def test_a_shard_whose_name_is_too_long_is_not_there(tmp_path: Path) -> None:
    (tmp_path / SHARD_INDEX).write_text(json.dumps({"weight_map": {"model.norm.weight": "x" * 5000}}))
    with pytest.raises(ModelFolderError):
        find_checkpoint(tmp_path)


def test_an_error_is_no_longer_than_a_screen_and_can_be_written_anywhere() -> None:
    with pytest.raises(ModelError) as caught:
        ModelSpec.from_config({"architectures": ["LlamaForCausalLM"], "hidden_act": "\ud800" + "x" * 100_000})
    message = str(caught.value)
    assert len(message) <= 4096
    assert message.encode().decode() == message
    assert "hidden_act" in message


def test_an_added_token_far_beyond_the_vocabulary_is_refused(folder: Path) -> None:
    definition = json.loads((folder / "tokenizer.json").read_text())
    definition["added_tokens"].append({**definition["added_tokens"][0], "content": "<|far|>", "id": 4_000_000_000})
    (folder / "tokenizer.json").write_text(json.dumps(definition))
    try:
        tokenizer = Tokenizer(folder)
    except TokenizerError:
        return
    # The library numbers added tokens itself.
    assert tokenizer.vocab_size < 1000
