"""Every way a model can be unusable, as one exception class each."""

from __future__ import annotations

# Messages quote what strangers wrote, and libraries that quote it whole.
_MOST_CHARACTERS = 4096


class ModelError(Exception):
    """Base of all model errors; the message names the folder, tensor or setting and what was expected.

    It can be written anywhere: it has at most 4096 characters, and each is one that UTF-8 can encode.
    """

    def __init__(self, message: str) -> None:
        cut = message if len(message) <= _MOST_CHARACTERS else message[: _MOST_CHARACTERS - 1] + "…"
        super().__init__(cut.encode(errors="backslashreplace").decode()[:_MOST_CHARACTERS])


class FetchError(ModelError):
    """The model folder could not be built or downloaded."""


class UnknownModelError(FetchError):
    """The name is neither a folder nor one that a model can be fetched by."""


class ModelFolderError(ModelError):
    """A folder is not a usable model: a file is missing or damaged."""


class UnsupportedModelError(ModelError):
    """The architecture, or an option of its config, is not one that the decoder implements."""


class WeightsError(ModelError):
    """The checkpoint does not fit the config: a tensor is missing, unexpected or mis-shaped."""


class TokenizerError(ModelError):
    """The tokenizer cannot be loaded, or its byte table cannot be derived."""


class PromptError(ModelError, ValueError):
    """This text or chat cannot be tokenised; the model is fine."""
