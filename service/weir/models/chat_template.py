"""A model's own Jinja chat template, rendered in a sandbox: templates come with checkpoints and are not trusted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import NoReturn

import jinja2
from jinja2.ext import Extension
from jinja2.nodes import Node
from jinja2.parser import Parser

from weir.models.errors import ModelFolderError, PromptError, TokenizerError
from weir.models.json_file import read_json
from weir.models.special_tokens import TOKENIZER_CONFIG, read_special_tokens
from weir.models.template_environment import MeteredEnvironment
from weir.models.template_meter import RenderLimits, TemplateLimitError

# Several times the longest of any model there is.
MAX_SOURCE_CHARS = 2**17
_LIMITS = RenderLimits()
_LONGEST_MESSAGE = 300


class ChatTemplate:
    """Renders messages as transformers' `apply_chat_template(add_generation_prompt=True, tokenize=False)` does."""

    def __init__(self, source: str, special_tokens: Mapping[str, str], limits: RenderLimits = _LIMITS) -> None:
        """special_tokens: the names a template may use, as `bos_token`. limits: of every render.

        Raises TokenizerError for a template that is too long, does not compile, or has no end.
        """
        self._special_tokens = dict(special_tokens)
        self._limits = limits
        self._environment = _environment()
        if len(source) > MAX_SOURCE_CHARS:
            raise TokenizerError(f"the chat template has {len(source)} characters; at most {MAX_SOURCE_CHARS} are read")
        try:
            self._template = self._environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise TokenizerError(f"the chat template is invalid at line {error.lineno}: {_brief(error)}") from None
        except Exception as error:  # Python compiles what jinja2 makes of it, and has limits of its own
            raise TokenizerError(f"the chat template cannot be compiled: {_brief(error)}") from None
        self._try()

    @classmethod
    def from_folder(cls, folder: Path) -> ChatTemplate | None:
        """Read chat_template.jinja, or `chat_template` in tokenizer_config.json; None when the model has neither.

        Raises ModelFolderError for a damaged file, and what making one raises.
        """
        source = _source(folder)
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
            return self._rendered(messages)
        except TemplateLimitError as error:
            raise PromptError(f"the model's chat template cannot render these messages: {_brief(error)}") from None
        except MemoryError:
            raise  # whoever set that limit says what it was
        except Exception as error:  # a template is a program: it can fail in every way that programs can
            raise PromptError(f"the model's chat template refuses these messages: {_brief(error)}") from None

    def _rendered(self, messages: Sequence[Mapping[str, str]]) -> str:
        chars = sum(len(message["role"]) + len(message["content"]) for message in messages)
        self._environment.using(self._limits.meter(len(messages), chars))
        return self._template.render(
            messages=[dict(message) for message in messages],
            tools=None,
            documents=None,
            add_generation_prompt=True,
            **self._special_tokens,
        )

    def _try(self) -> None:
        """What no message is needed to find out. A template may refuse this conversation; it may not go on for ever."""
        try:
            self._rendered([{"role": "user", "content": "Hi"}])
        except TemplateLimitError as error:
            raise TokenizerError(f"the chat template renders no message: {_brief(error)}") from None
        except Exception:
            return


def _source(folder: Path) -> str | None:
    own_file = folder / "chat_template.jinja"
    if own_file.is_file():
        try:
            # One character more than allowed is enough to be refused.
            with own_file.open(encoding="utf-8") as file:
                return file.read(MAX_SOURCE_CHARS + 1)
        except (OSError, UnicodeDecodeError) as error:
            raise ModelFolderError(f"cannot read {own_file}: {error}") from None
    config_file = folder / TOKENIZER_CONFIG
    config = read_json(config_file) if config_file.is_file() else {}
    templates = config.get("chat_template")
    if isinstance(templates, list):
        # The others are for tools and the like.
        named = [entry for entry in templates if isinstance(entry, Mapping) and entry.get("name") == "default"]
        templates = named[-1].get("template") if named else None
    return templates if isinstance(templates, str) else None


def _brief(error: BaseException) -> str:
    """What a template or its compiler says may be as long as they like."""
    message = getattr(error, "message", None) or str(error) or type(error).__name__
    return message if len(message) <= _LONGEST_MESSAGE else message[:_LONGEST_MESSAGE] + "…"


class _GenerationBlocks(Extension):
    """`{% generation %}` marks assistant text for training; here its body is just text."""

    tags = {"generation"}  # noqa: RUF012  # jinja2's own interface

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> MeteredEnvironment:
    environment = MeteredEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlocks])
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)
    return environment


def _raise_exception(message: object) -> NoReturn:
    raise jinja2.TemplateError(message if isinstance(message, str) else f"it raises a {type(message).__name__}")
