"""A model's own Jinja chat template, rendered in a sandbox: templates come with checkpoints and are not trusted."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import NoReturn

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from weir.models.errors import PromptError, TokenizerError
from weir.models.json_file import read_json, read_text
from weir.models.special_tokens import read_special_tokens


class ChatTemplate:
    """Renders messages as transformers' `apply_chat_template(add_generation_prompt=True, tokenize=False)` does."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """special_tokens: the names a template may use, as `bos_token`. Raises TokenizerError for a bad template."""
        self._special_tokens = dict(special_tokens)
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise TokenizerError(f"the chat template is invalid at line {error.lineno}: {error.message}") from None
        except Exception as error:  # Python compiles what Jinja makes of it, and has limits of its own
            raise TokenizerError(f"the chat template cannot be compiled: {error or type(error).__name__}") from None

    @classmethod
    def from_folder(cls, folder: Path) -> ChatTemplate | None:
        """Read chat_template.jinja, or `chat_template` in tokenizer_config.json; None when the model has neither."""
        config_file = folder / "tokenizer_config.json"
        config = read_json(config_file) if config_file.is_file() else {}
        own_file = folder / "chat_template.jinja"
        source = read_text(own_file) if own_file.is_file() else _default(config.get("chat_template"))
        return None if source is None else cls(source, read_special_tokens(folder).of_templates)

    def render(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The conversation as text that ends where the assistant's answer begins.

        Raises PromptError when a message lacks its role or content, or when the template refuses the conversation.
        """
        if not messages:
            raise PromptError("the conversation is empty; send at least one message")
        for index, message in enumerate(messages):
            for key in ("role", "content"):
                if not isinstance(message.get(key), str):
                    raise PromptError(f"message {index} needs a text as its {key}")
        try:
            return self._template.render(
                messages=[dict(message) for message in messages],
                tools=None,
                documents=None,
                add_generation_prompt=True,
                **self._special_tokens,
            )
        except MemoryError:
            raise  # whoever set the limit says what it was
        except Exception as error:  # a template is a program: it can fail in every way that programs can
            reason = str(error) or type(error).__name__
            raise PromptError(f"the model's chat template refuses these messages: {reason}") from None


def _default(templates: object) -> str | None:
    """`chat_template` is one template, or a list of named ones. Anything else is none."""
    if isinstance(templates, list):
        named = [entry for entry in templates if isinstance(entry, dict) and entry.get("name") == "default"]
        templates = named[-1].get("template") if named else None
    return templates if isinstance(templates, str) else None


class _GenerationBlocks(Extension):
    """`{% generation %}` marks assistant text for training; here its body is just text."""

    tags = {"generation"}  # noqa: RUF012  # jinja2's own interface

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_GenerationBlocks, loopcontrols],
        # Jinja would compute constant expressions while it compiles, when no limit of time or memory holds yet.
        optimized=False,
        finalize=_as_it_is,
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)
    return environment


@jinja2.pass_context
def _as_it_is(_: object, value: object) -> object:
    """Depends on the context as far as Jinja knows, so that no output is computed before there is one."""
    return value


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes HTML characters, which a prompt must not. The order of parameters is transformers'.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
