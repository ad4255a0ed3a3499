"""From token ids to text, one token at a time and byte-exact: what is sent can never have to be taken back."""

from __future__ import annotations

from codecs import utf_8_decode
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from weir.engine.stop_strings import StopScanner, compile_stop_strings

# The longest beginning of a character that still lacks a byte.
_LONGEST_INCOMPLETE = 3


@dataclass(frozen=True, slots=True)
class TextStart:
    """Where in a text an output begins. pending: bytes of a character that the prompt has begun and not completed;
    first_word: the prompt has no text, so that the text begins here."""

    pending: bytes = b""
    first_word: bool = True


_NO_PROMPT = TextStart()


class TokenTable:
    """The bytes of every token of one vocabulary; built once and shared by all streams.

    token_bytes: exact bytes by token id. special_ids: tokens without text (end-of-sequence, chat marks).
    strips_leading_space: the tokenizer adds a space before the first word, which is not part of the text
    (sentencepiece style). first_token_bytes: the bytes by token id of a text's first token, where they are others.
    An id past the end of `token_bytes` has no text: models may pad their vocabulary.
    """

    __slots__ = ("alone", "first_token_bytes", "strips_leading_space", "token_bytes")

    def __init__(
        self,
        token_bytes: Sequence[bytes],
        special_ids: Collection[int] = (),
        strips_leading_space: bool = False,
        first_token_bytes: Sequence[bytes] | None = None,
    ) -> None:
        self.token_bytes = list(token_bytes)
        for token_id in special_ids:
            if token_id < len(self.token_bytes):
                self.token_bytes[token_id] = b""
        self.strips_leading_space = strips_leading_space
        self.first_token_bytes = first_token_bytes
        # The text of a token that is whole characters, ready-made: most tokens never see the decoder.
        self.alone = [_text_or_none(data) for data in self.token_bytes]

    def after(self, prompt: Sequence[int]) -> TextStart:
        """Where the output of a prompt begins. Reads the prompt from its end, and no more than a character of it."""
        tail = b""
        for token_id in reversed(prompt):
            if token_id < len(self.token_bytes):
                tail = self.token_bytes[token_id][-_LONGEST_INCOMPLETE:] + tail
                if len(tail) >= _LONGEST_INCOMPLETE:
                    break
        _, used = utf_8_decode(tail, "replace", False)
        pending = tail[used:]
        # Python's decoder also waits behind half a surrogate, which no byte can complete.
        completable = len(pending.decode(errors="replace")) == 1
        return TextStart(pending if completable else b"", first_word=not tail)


class TextStream:
    """The text of one choice as it grows.

    `push` and `finish` return the text that became certain; all returns concatenated are the whole text, whatever
    the tokens were. An incomplete character waits for its bytes. Each maximal part that is no UTF-8 becomes one
    U+FFFD, as in the Unicode standard (3.9, "U+FFFD Substitution of Maximal Subparts"); nothing raises.

    The text goes on where the complete characters of the prompt end (`start`), so the two joined are what decoding
    prompt and output together gives. Stop strings are found in the output's text only.

    `stopped` is the stop string that ended the text, or None. It can be set by `finish` too: a stop string that is
    complete still waits while an earlier one may be completing around it. Afterwards there is no more text.
    """

    __slots__ = ("_first", "_pending", "_scanner", "_strip", "_table", "stopped")

    def __init__(
        self,
        table: TokenTable,
        stop: tuple[str, ...] = (),
        include_stop: bool = False,
        start: TextStart = _NO_PROMPT,
    ) -> None:
        self._table = table
        self._pending = start.pending
        self._strip = start.first_word and table.strips_leading_space
        self._first = table.first_token_bytes if start.first_word else None
        self._scanner = StopScanner(compile_stop_strings(stop), include_stop) if stop else None
        self.stopped: str | None = None

    def push(self, token_id: int) -> str:
        """Add one token."""
        try:
            text = self._table.alone[token_id]
        except IndexError:
            return ""
        if text is None or self._pending or self._first is not None:
            text = self._decode(self._bytes(token_id), final=False)
        if self._strip or self._scanner is not None:
            return self._certain(text)
        return text

    def finish(self) -> str:
        """End the text: incomplete bytes become U+FFFD, and what was held for a stop string is let go."""
        text = self._certain(self._decode(b"", final=True))
        if self._scanner is not None and self.stopped is None:
            text += self._scanner.finish()
            self.stopped = self._scanner.found
        return text

    def _bytes(self, token_id: int) -> bytes:
        data = self._table.token_bytes[token_id]
        if self._first is not None and data:
            data, self._first = self._first[token_id], None
        return data

    def _decode(self, data: bytes, *, final: bool) -> str:
        data = self._pending + data
        text, used = utf_8_decode(data, "replace", final)
        self._pending = data[used:]
        return text

    def _certain(self, text: str) -> str:
        if self._strip and text:
            self._strip = False
            text = text.removeprefix(" ")
        if self._scanner is None:
            return text
        if self.stopped is not None:
            return ""
        text = self._scanner.push(text)
        self.stopped = self._scanner.found
        return text


def _text_or_none(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None
