"""Templates that never end or take all memory are refused at load: steps are counted, and room is bounded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest
from weir.models.chat_template import MAX_SOURCE_CHARS, ChatTemplate
from weir.models.check import check_model
from weir.models.errors import ModelFolderError, PromptError, TokenizerError
from weir.models.template_meter import RenderLimits

from tests.unit.models import hostile_templates, tiny, vocabularies

MESSAGES = [{"role": "user", "content": "Hi"}]


@dataclass(frozen=True)
class Outcomes:
    """Of a process that may take 2 GiB."""

    templates: dict[str, str]
    operations: dict[str, str]
    peak: int


@pytest.fixture(scope="module")
def outcomes() -> Outcomes:
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-m", "tests.unit.models.hostile_templates"], cwd=root, capture_output=True, check=True
    )
    return Outcomes(**json.loads(done.stdout))


@pytest.mark.parametrize("name", hostile_templates.TEMPLATES)
def test_a_template_without_end_or_measure_is_refused_at_load(name: str, outcomes: Outcomes) -> None:
    """An endless loop never became ready and ignored SIGTERM; `'a' * 3e9` took 3 GB."""
    assert outcomes.templates[name].startswith("the chat template renders no message: it ")


def test_no_filter_or_method_makes_much_of_little(outcomes: Outcomes) -> None:
    assert len(outcomes.operations) > 600
    out_of_memory = [name for name, said in outcomes.operations.items() if "MemoryError" in said]
    assert not out_of_memory
    assert outcomes.peak < 2**28


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{{ " + "(" * 40000 + "1" + ")" * 40000 + " }}", "cannot be compiled"),
        ("{% if 1 %}" * 6000 + "{% endif %}" * 6000, "cannot be compiled"),
        ("{{ 1" + "+1" * 60000 + " }}", "cannot be compiled"),
        ("{{ " + "9" * 100_000 + " }}", "cannot be compiled"),
        ("{% autoescape true %}a{% endautoescape %}", "is not for chat templates"),
        ("a" * (MAX_SOURCE_CHARS + 1), f"has {MAX_SOURCE_CHARS + 1} characters; at most {MAX_SOURCE_CHARS} are read"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}{% endif %}", "invalid at line 1"),
    ],
    ids=["parentheses", "blocks", "a sum", "digits", "autoescape", "length", "syntax"],
)
def test_a_template_that_cannot_be_compiled_is_the_models_fault(source: str, reason: str) -> None:
    with pytest.raises(TokenizerError, match=reason):
        ChatTemplate(source, {})


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "maximum recursion depth exceeded"),
        ("{{ raise_exception('a' * 9000) }}", "refuses these messages: a{300}…$"),
        ("{{ raise_exception([messages]) }}", "it raises a list"),
        ("{{ (1).to_bytes(9, 'big') }}", "to_bytes is not for chat templates"),
    ],
)
def test_a_template_that_fails_in_its_own_way_refuses_in_few_words(source: str, reason: str) -> None:
    with pytest.raises(PromptError, match=reason):
        ChatTemplate(source, {}).render(MESSAGES)


def test_the_limits_grow_with_the_conversation_and_no_further() -> None:
    """A thousand messages may be written four times, and no fifth time."""
    limits = RenderLimits(chars=1000, chars_a_char=4, chars_a_message=0)
    messages = [{"role": "user", "content": "x" * 996}] * 1000
    times = "{% for i in range(N) %}{% for m in messages %}{{ m.role ~ m.content }}{% endfor %}{% endfor %}"
    assert len(ChatTemplate(times.replace("N", "4"), {}, limits).render(messages)) == 4_000_000
    with pytest.raises(
        PromptError, match=r"cannot render these messages: it makes something of 4002000 characters; at most 4001000"
    ):
        ChatTemplate(times.replace("N", "5"), {}, limits).render(messages)


def test_the_steps_are_counted_for_each_render_and_not_over_all_of_them() -> None:
    limits = RenderLimits(steps=200, steps_a_char=0, steps_a_message=0)
    template = ChatTemplate("{% for i in range(20) %}a{% endfor %}", {}, limits)
    for _ in range(100):
        assert template.render(MESSAGES) == "a" * 20
    with pytest.raises(TokenizerError, match="it takes too many steps"):
        ChatTemplate("{% for i in range(200) %}a{% endfor %}", {}, limits)


def test_the_time_is_bounded_where_the_steps_are_not() -> None:
    with pytest.raises(TokenizerError, match=r"it takes more than 0\.05 s"):
        ChatTemplate(
            "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
            {},
            RenderLimits(steps=10**12, cpu_s=0.05),
        )


def test_threads_render_one_template_each_within_its_own_limits() -> None:
    template = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}", {}, RenderLimits(steps=3000))
    results: dict[int, list[str]] = {}

    def render(number: int) -> None:
        text = [{"role": "user", "content": f"{number};"}] * (number + 1)
        results[number] = [template.render(text) for _ in range(50)]

    threads = [threading.Thread(target=render, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {number: [f"{number};" * (number + 1)] * 50 for number in range(8)}


def test_a_model_with_such_a_template_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    tiny.save(tiny.make(tiny.configs()["llama2"]), tmp_path)
    vocabularies.byte_level().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "chat_template.jinja").write_text("{{ 'a' * 3000000000 }}")
    with pytest.raises(TokenizerError, match="the chat template renders no message"):
        check_model(tmp_path)


def test_a_template_file_that_is_no_text_or_never_ends_is_named(tmp_path: Path) -> None:
    file = tmp_path / "chat_template.jinja"
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(ModelFolderError, match=r"cannot read .*chat_template\.jinja"):
        ChatTemplate.from_folder(tmp_path)
    with file.open("wb") as opened:
        opened.truncate(2**40)
    with pytest.raises(TokenizerError, match=f"has {MAX_SOURCE_CHARS + 1} characters"):
        ChatTemplate.from_folder(tmp_path)
    file.unlink()
    os.mkfifo(file)
    assert ChatTemplate.from_folder(tmp_path) is None
