"""Text and chats to token ids, and token ids to bytes; needs `tokenizers` and a tokenizer.json, not transformers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import tokenizers

from weir.models.chat_template import ChatTemplate
from weir.models.errors import PromptError, TokenizerError
from weir.models.explain import TOKENIZER, require_tokenizer
from weir.models.json_file import read_json
from weir.models.special_tokens import read_special_tokens
from weir.models.token_bytes import byte_table, first_token_table, strips_leading_space

# A definition may be read without a fault and fail on the first text.
_SAMPLE = "The river was 12 m wide; 河流 é 🙂\n"
_ANSWER = "an-answer"
_ANSWERED = [
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": _ANSWER},
    {"role": "user", "content": "Hi"},
]


class Tokenizer:
    """The tokenizer of a model folder. Immutable, so threads may share it.

    token_bytes: exact bytes by token id, special_ids: tokens that are no text (end-of-sequence, chat marks),
    strips_leading_space: decoding drops one space at the beginning of a text,
    special_tokens: what the folder's files call them,
    first_token_bytes: the table for the first token of a text, where decoding treats it differently; else None,
    vocab_size: ids are 0..vocab_size - 1; the model's own vocabulary may be padded beyond.
    """

    def __init__(self, folder: str | Path) -> None:
        """Raises ModelFolderError when a file is missing or damaged, TokenizerError when it is not supported."""
        folder = Path(folder)
        require_tokenizer(folder)
        path = folder / TOKENIZER
        definition = read_json(path)
        self._tokenizer = _open(path)
        self.special_tokens = read_special_tokens(folder)
        self._chat_template = ChatTemplate.from_folder(folder)
        added = self._tokenizer.get_added_tokens_decoder()
        vocab = self._tokenizer.get_vocab(with_added_tokens=False)
        contents = {i: token.content for i, token in added.items()}
        self.token_bytes: list[bytes] = byte_table(definition, vocab, contents)
        self.first_token_bytes: list[bytes] | None = first_token_table(definition, vocab, contents)
        self.special_ids: frozenset[int] = frozenset(i for i, token in added.items() if token.special)
        self.strips_leading_space: bool = strips_leading_space(definition)

    @property
    def vocab_size(self) -> int:
        """One more than the largest token id."""
        return len(self.token_bytes)

    def token_id(self, text: str) -> int | None:
        """The id of the token whose text this is; None when there is none."""
        try:
            token_id: int | None = self._tokenizer.token_to_id(text)
        except UnicodeEncodeError:  # a lone surrogate, which JSON can hold
            return None
        return token_id

    def encode(self, text: str) -> list[int]:
        """Token ids of a prompt, with the special tokens that the tokenizer itself adds (as a BOS).

        Raises PromptError for text that is not valid Unicode, or that the model's tokenizer fails on.
        """
        return self._encode(text, add_special_tokens=True)

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Token ids of a conversation (`role` and `content` each), ending where the assistant's answer begins.

        Raises PromptError when the model has no chat template, or when its template refuses the conversation.
        """
        if self._chat_template is None:
            raise PromptError("this model has no chat template; send the prompt as text")
        # The template writes the special tokens itself.
        return self._encode(self._chat_template.render(messages), add_special_tokens=False)

    def ends_answers_with(self) -> int | None:
        """The special token that the chat template writes behind an assistant's answer, if there is one."""
        if self._chat_template is None:
            return None
        try:
            text = self._chat_template.render(_ANSWERED)
        except PromptError:
            return None
        behind = text.partition(_ANSWER)[2].lstrip()
        found = [i for i in self.special_ids if self.token_bytes[i] and behind.encode().startswith(self.token_bytes[i])]
        return max(found, key=lambda i: len(self.token_bytes[i]), default=None)

    def _encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise PromptError(
                f"the text is not valid Unicode: character {error.start} is the lone surrogate "
                f"U+{ord(text[error.start]):04X}"
            ) from None
        try:
            # The same ids as `encode`, in half the time, and other threads run meanwhile.
            [encoding] = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        except MemoryError:
            raise  # whoever set the limit says what it was
        except BaseException as error:  # the library raises plain Exception, as for an unknown token that is not there
            if not isinstance(error, Exception) and not _is_panic(error):
                raise
            raise PromptError(f"the model's tokenizer fails on this text: {error}") from None
        ids: list[int] = encoding.ids
        return ids


def _open(path: Path) -> tokenizers.Tokenizer:
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
        # A checkpoint may have been saved with the limits of its training.
        tokenizer.no_truncation()
        tokenizer.no_padding()
    except BaseException as error:  # the library raises plain Exception
        if not isinstance(error, Exception) and not _is_panic(error):
            raise
        raise TokenizerError(f"cannot load {path}: {error}") from None
    try:
        tokenizer.decode(tokenizer.encode(_SAMPLE).ids)
    except Exception:
        return tokenizer  # of this text alone; others may do
    except BaseException as error:
        if not _is_panic(error):
            raise
        raise TokenizerError(f"cannot load {path}: the tokenizers library fails on any text: {error}") from None
    return tokenizer


def _is_panic(error: BaseException) -> bool:
    """What Rust calls a panic is no Exception in Python."""
    return type(error).__name__ == "PanicException"
