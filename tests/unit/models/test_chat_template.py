"""Chat templates rendered as transformers renders them, and refusals that say why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer
from weir.models.chat_template import ChatTemplate
from weir.models.errors import PromptError, TokenizerError
from weir.models.tokenizer import Tokenizer

from tests.unit.models import vocabularies

# One for each thing that templates of well-known models do.
TEMPLATES = {
    "bos, trim and loop variables": (
        "{{ bos_token }}{% for m in messages %}{{ '[' + m['role'] + ']' + m['content'] | trim }}"
        "{% if not loop.last %}{{ eos_token }}{% endif %}{% endfor %}"
    ),
    "blocks on lines of their own": (
        "{% for m in messages %}\n    {% if m.role == 'user' %}\nU: {{ m.content }}\n    {% else %}\n"
        "O: {{ m.content }}\n    {% endif %}\n{% endfor %}\n{% if add_generation_prompt %}\nA:{% endif %}"
    ),
    "a system message put aside, namespace and break": (
        "{% set ns = namespace(system='none') %}{% for m in messages %}{% if m.role == 'system' %}"
        "{% set ns.system = m.content %}{% break %}{% endif %}{% endfor %}({{ ns.system }})"
        "{% for m in messages if m.role != 'system' %}{{ m.content }}|{% endfor %}"
    ),
    "json without escapes": "{{ messages | tojson }}{{ messages[0] | tojson(indent=2) }}",
    "json in the order and with the separators that a model was trained on": (
        "{{ messages | tojson(separators=(',', ':'), sort_keys=true) }}"
        "{{ messages[0] | tojson(true, 1, ('; ', ' = ')) }}"
    ),
    "a walk backwards, and what a message begins and ends with": (
        "{% set ns = namespace(open=true, last=messages|length - 1) %}{% for m in messages[::-1] %}"
        "{% set index = (messages|length - 1) - loop.index0 %}"
        "{% if ns.open and m.role == 'user' and m.content is string "
        "and not (m.content.startswith('<a>') and m.content.endswith('</a>')) %}{% set ns.open = false %}"
        "{% set ns.last = index %}{% endif %}{% endfor %}{{ ns.last }}{{ messages[ns.last].content.split('ö')[-1] }}"
    ),
    "macros, blocks and the filters of blocks": (
        "{% macro turn(role, text='none') %}<{{ role }}>{{ caller() if caller else text }}{% endmacro %}"
        "{% set head %}{{ turn('system') }}{{ bos_token }}{% endset %}{{ head }}"
        "{% for m in messages %}{% call turn(m.role) %}{{ m.content | trim }}{% endcall %}{{ turn(m.role, m.content) }}"
        "{% filter upper %}{{ m.role }}{% endfilter %}{% endfor %}"
    ),
    "joining and formatting in every way there is": (
        "{% for m in messages %}{{ m.role ~ ': ' ~ loop.index ~ none }}{{ '%s|%5.1f' % (m.content, 2) }}"
        "{{ '{0[role]:>9}{1!r}'.format(m, [m.content]) }}{{ m.content + '.' * 3 }}{{ '%d'|format(loop.index) }}"
        "{{ [m.role, 'x', 2] | join('-') }}{{ ', '.join(m.keys()) }}{{ m }}{{ m.items() | list }}{% endfor %}"
    ),
    "lists that are chosen, sorted, sliced and added": (
        "{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | join('/') }}"
        "{{ messages | map(attribute='role') | unique | list | sort(reverse=true) }}"
        "{{ (messages + messages[:1]) | length }}"
        "{% for role, group in messages | groupby('role') %}{{ role }}{{ group | length }}{% endfor %}"
        "{% for k, v in messages[0] | dictsort %}{{ k }}={{ v }};{% endfor %}{{ [1, 2, 3] | sum }}{{ (1, 2) + (3,) }}"
        "{% for b in messages | batch(2, 'none') %}{{ b | length }}{% endfor %}"
        "{{ messages | join('+', attribute='role') }}"
    ),
    "loops within loops and of themselves": (
        "{% for m in messages recursive %}{{ loop.depth }}{{ m.role or m }}"
        "{% if loop.depth == 1 %}{{ loop(['a', 'b']) }}{% endif %}"
        "{{ loop.cycle('odd', 'even') }}{{ loop.previtem }}{{ loop.changed(m.role) }}"
        "{% else %}none{% endfor %}{% for i in range(3) if i != 1 %}{{ i }}{{ loop.length }}{% endfor %}"
        "{% set roles = {'user': 'U', 'assistant': 'A'} %}"
        "{% for m in messages %}{{ roles.get(m.role, 'S') }}{% endfor %}"
    ),
    "text that is indented, cut, padded, searched and escaped": (
        "{% for m in messages %}{{ m.content | indent(2, true) }}{{ m.content | truncate(9) }}{{ m.role | center(12) }}"
        "{{ m.content.replace('\n', '\\n') | e }}{{ m.content | replace('e', '3') }}{{ m.role.ljust(11) }}"
        "{{ m.content[2:5] }}{{ m.content.find('e') }}{{ 'e' in m.content }}{{ m.content | urlencode }}"
        "{{ 7 // 2 ** 2 }}"
        "{{ m.content | wordcount }}{{ m.content | string | title }}{{ '12' | int + 1.5 | round(1) }}{% endfor %}"
    ),
    "tools and documents absent": (
        "{% if tools %}T{% endif %}{% if documents is defined and documents %}D{% endif %}{{ messages | length }}"
    ),
    "blocks marked for training": (
        "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"
    ),
    "the year": "{{ strftime_now('%Y') }}",
    "an undefined variable is empty": "{{ nothing }}{{ messages[0].nothing }}.",
}
MESSAGES = [
    {"role": "system", "content": 'Be <brief> & "exact".'},
    {"role": "user", "content": "  Größe? 河流 🙂\n"},
    {"role": "assistant", "content": "12"},
    {"role": "user", "content": "{{ bos_token }} {% raw %}"},
]


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_renders_as_in_transformers(name: str, tmp_path: Path) -> None:
    reference = vocabularies.save(vocabularies.byte_level(), tmp_path, TEMPLATES[name])
    template = ChatTemplate.from_folder(tmp_path)
    assert template is not None
    for messages in (MESSAGES, MESSAGES[1:2]):
        expected = reference.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        assert template.render(messages) == expected


NAMES = ("bos_token", "eos_token", "unk_token", "pad_token", "image_token", "boi_token", "mark", "add_bos_token")
TOKEN = {"__type": "AddedToken", "lstrip": False, "rstrip": False, "normalized": False, "single_word": False}


@pytest.mark.parametrize(
    ("config", "special_map"),
    [
        ({}, {"bos_token": "<s>", "eos_token": {"content": "</s>", **TOKEN}}),
        ({"bos_token": "<s>", "pad_token": None}, {"bos_token": "</s>", "unk_token": "<unk>"}),
        (
            {"bos_token": "<s>", "added_tokens_decoder": {"1": {"content": "<s>", "special": True}}},
            {"bos_token": "</s>"},
        ),
        ({"extra_special_tokens": {"image_token": "<|user|>", "mark": {"content": "[m]", **TOKEN}}}, None),
        ({"extra_special_tokens": ["<|user|>"], "boi_token": "<｜end｜>"}, {"additional_special_tokens": ["<s>"]}),
        ({"add_bos_token": True}, {"extra_special_tokens": {"image_token": "<|user|>"}, "boi_token": "<s>"}),
        ({"model_specific_special_tokens": {"image_token": "<|user|>"}, "eos_token": {"content": "</s>", **TOKEN}}, {}),
        ({"additional_special_tokens": {"image_token": "<|user|>"}}, None),
    ],
)
def test_special_tokens_reach_a_template_from_every_file_as_in_transformers(
    config: dict[str, Any], special_map: dict[str, Any] | None, tmp_path: Path
) -> None:
    vocabularies.byte_level().save(str(tmp_path / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **config}
    config["chat_template"] = "".join(f"{name}={{{{ {name} }}}};" for name in NAMES)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    if special_map is not None:
        (tmp_path / "special_tokens_map.json").write_text(json.dumps(special_map))
    reference = AutoTokenizer.from_pretrained(tmp_path)
    rendered = _render(tmp_path)
    assert rendered == reference.apply_chat_template([{"role": "user", "content": "hello"}], tokenize=False)
    assert any(f"{name}={token}" in rendered for name in NAMES for token in ("<s>", "</s>", "<|user|>", "<｜end｜>"))


def test_a_template_in_the_tokenizer_config_is_found(tmp_path: Path) -> None:
    config = tmp_path / "tokenizer_config.json"
    config.write_text('{"chat_template": "{{ bos_token }}!", "bos_token": {"content": "<s>"}}')
    assert _render(tmp_path) == "<s>!"
    config.write_text(
        '{"chat_template": [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]}'
    )
    assert _render(tmp_path) == "d"
    (tmp_path / "chat_template.jinja").write_text("own file")
    assert _render(tmp_path) == "own file"


def _render(folder: Path) -> str:
    template = ChatTemplate.from_folder(folder)
    assert template is not None
    return template.render([{"role": "user", "content": "hello"}])


def test_a_model_without_a_template_has_none(tmp_path: Path) -> None:
    assert ChatTemplate.from_folder(tmp_path) is None


def test_a_role_that_the_template_refuses_is_the_prompts_fault() -> None:
    source = "{% if messages[0].role not in ['user'] %}{{ raise_exception('roles must alternate') }}{% endif %}"
    with pytest.raises(PromptError, match="refuses these messages: roles must alternate"):
        ChatTemplate(source, {}).render([{"role": "assistant", "content": "hello"}])


@pytest.mark.parametrize(
    "source",
    ["{{ messages[7].content }}", "{{ messages[0].content + 1 }}", "{{ 1 / 0 }}", "{{ messages.append(1) }}"],
)
def test_a_template_that_fails_on_the_messages_is_a_prompt_error(source: str) -> None:
    with pytest.raises(PromptError, match="refuses these messages"):
        ChatTemplate(source, {}).render([{"role": "user", "content": "hello"}])


@pytest.mark.parametrize("source", ["{{ ''.__class__.__mro__ }}", "{{ messages[0].__init__.__globals__ }}"])
def test_a_template_cannot_reach_the_interpreter(source: str) -> None:
    with pytest.raises(PromptError, match="unsafe"):
        ChatTemplate(source, {}).render([{"role": "user", "content": "hello"}])


def test_a_template_with_a_syntax_error_is_the_models_fault() -> None:
    with pytest.raises(TokenizerError, match=r"invalid at line 2: .*endfor"):
        ChatTemplate("{% for m in messages %}\n{% endfo %}", {})


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([], "conversation is empty"),
        ([{"role": "user"}], "message 0 needs a text as its content"),
        ([{"role": "user", "content": "a"}, {"content": "b"}], "message 1 needs a text as its role"),
    ],
)
def test_incomplete_messages_are_refused(messages: list[dict[str, str]], reason: str) -> None:
    with pytest.raises(PromptError, match=reason):
        ChatTemplate("", {}).render(messages)


def test_text_of_a_user_cannot_be_a_template(tmp_path: Path) -> None:
    vocabularies.save(vocabularies.byte_level(), tmp_path, "{{ messages[0].content }}")
    tokenizer = Tokenizer(tmp_path)
    ids = tokenizer.encode_chat([{"role": "user", "content": "{{ 1 + 1 }}"}])
    assert b"".join(tokenizer.token_bytes[i] for i in ids) == b"{{ 1 + 1 }}"
