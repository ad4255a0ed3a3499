"""The special tokens that a tokenizer's files name, as `bos_token`: for chat templates, and for the end of a text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weir.models.json_file import read_json

TOKENIZER_CONFIG = "tokenizer_config.json"
SPECIAL_TOKENS_MAP = "special_tokens_map.json"
# Where names stand that are not `..._token`, or are of this model alone.
_GROUPS = ("extra_special_tokens", "additional_special_tokens", "model_specific_special_tokens")


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """by_file: name -> text for each file that there is. of_templates: the names and texts that transformers hands
    to a chat template."""

    by_file: Mapping[str, Mapping[str, str]]
    of_templates: Mapping[str, str]


def read_special_tokens(folder: Path) -> SpecialTokens:
    """Read tokenizer_config.json and special_tokens_map.json. Raises ModelFolderError when one is damaged.

    As in transformers, the map wins where both name a token, and templates do not see it beside a config that lists
    `added_tokens_decoder`: then the config is of a later date.
    """
    found = {
        name: read_json(folder / name) for name in (TOKENIZER_CONFIG, SPECIAL_TOKENS_MAP) if (folder / name).is_file()
    }
    by_file = {name: _named(content) for name, content in found.items()}
    of_templates = dict(by_file.get(TOKENIZER_CONFIG, {}))
    if "added_tokens_decoder" not in found.get(TOKENIZER_CONFIG, {}):
        of_templates |= by_file.get(SPECIAL_TOKENS_MAP, {})
    return SpecialTokens(by_file, of_templates)


def _named(content: Mapping[str, Any]) -> dict[str, str]:
    named = {name: value for name, value in content.items() if name.endswith("_token")}
    for group in _GROUPS:
        if isinstance(members := content.get(group), Mapping):
            named |= members
    texts = {name: _text(value) for name, value in named.items()}
    return {name: text for name, text in texts.items() if text is not None}


def _text(value: object) -> str | None:
    """A token is its text, or an object with it."""
    text = value.get("content") if isinstance(value, Mapping) else value
    return text if isinstance(text, str) else None
