"""The tokens that end an output: those of every file of a model that names one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from weir.models.errors import ModelFolderError
from weir.models.json_file import read_json
from weir.models.tokenizer import Tokenizer

# In the order in which transformers asks them: it generates by the first that names any.
_MODEL_FILES = ("generation_config.json", "config.json")
_LARGEST_ID = 2**31 - 1


@dataclass(frozen=True, slots=True)
class EndTokens:
    """by_file: the ids that each file names, for files that name any. unknown: texts that are no token, by file.

    One of them is often wrong: of a base model, or of the chat format only. A model that was trained to say any of
    them is done when it does, so all of them count.
    """

    by_file: Mapping[str, tuple[int, ...]]
    unknown: Mapping[str, str]

    @property
    def ids(self) -> tuple[int, ...]:
        """All of them, once."""
        return tuple(dict.fromkeys(token_id for ids in self.by_file.values() for token_id in ids))

    @property
    def beyond_transformers(self) -> tuple[int, ...]:
        """Those at which transformers' `generate` would go on."""
        known = next((self.by_file[name] for name in _MODEL_FILES if name in self.by_file), ())
        return tuple(token_id for token_id in self.ids if token_id not in known)

    def disagreement(self) -> str | None:
        """One sentence with what each file says, where they differ; None where they agree."""
        if len({frozenset(ids) for ids in self.by_file.values()}) <= 1 and not self.unknown:
            return None
        said = [f"{name} says {', '.join(map(str, ids))}" for name, ids in self.by_file.items()]
        said += [f"{name} says {text!r}, which is no token" for name, text in self.unknown.items()]
        return f"the model's files name different end tokens, and each of them ends an output: {'; '.join(said)}"


def end_tokens(folder: Path, tokenizer: Tokenizer | None) -> EndTokens:
    """Read the model's config files, and the `eos_token` of each file of its tokenizer.

    Raises ModelFolderError for a value that is no token id or list of token ids.
    """
    by_file = {name: _ids(folder / name) for name in _MODEL_FILES if (folder / name).is_file()}
    unknown: dict[str, str] = {}
    if tokenizer is not None:
        for name, texts in tokenizer.special_tokens.by_file.items():
            text = texts.get("eos_token")
            token_id = tokenizer.token_id(text) if text else None
            if token_id is not None:
                by_file[name] = (token_id,)
            elif text:
                unknown[name] = text
    return EndTokens({name: ids for name, ids in by_file.items() if ids}, unknown)


def _ids(file: Path) -> tuple[int, ...]:
    value = read_json(file).get("eos_token_id")
    ids = value if isinstance(value, list) else [] if value is None else [value]
    for token_id in ids:
        if not isinstance(token_id, int) or isinstance(token_id, bool) or not 0 <= token_id <= _LARGEST_ID:
            raise ModelFolderError(f"{file}: eos_token_id must be a token id or a list of token ids, not {value!r}")
    return tuple(ids)
