"""The exact bytes of every token, read from tokenizer.json: text can be cut anywhere, bytes cannot be wrong."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from weir.models.errors import TokenizerError

_SPACE_MARK = "▁"
# Far beyond any vocabulary there is; the table takes eight bytes for each id.
_MOST_TOKENS = 2**22
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def byte_table(definition: Mapping[str, Any], vocab: Mapping[str, int], added: Mapping[int, str]) -> list[bytes]:
    """Token id -> bytes, for byte-level BPE and for sentencepiece (with or without byte fallback).

    definition: the content of tokenizer.json, vocab: token -> id of the model, added: id -> content of added tokens.
    Ids that no token has get no bytes. Raises TokenizerError for another kind of tokenizer, and for ids from 2^22 on.
    """
    return _table(*_converters(definition), vocab, added)


def first_token_table(
    definition: Mapping[str, Any], vocab: Mapping[str, int], added: Mapping[int, str]
) -> list[bytes] | None:
    """As `byte_table`, for the first token of a text where decoding drops its space marks; None where it doesn't."""
    for step in _steps(definition.get("decoder"), "decoders"):
        if step["type"] == "Metaspace" and step.get("prepend_scheme", "always") != "never":
            return _table(_sentencepiece(""), _sentencepiece(""), vocab, added)
    return None


def strips_leading_space(definition: Mapping[str, Any]) -> bool:
    """Whether decoding drops one space at the beginning of a text."""
    return any(
        step["type"] == "Strip" and step.get("content") == " " and step.get("start", 0) > 0
        for step in _steps(definition.get("decoder"), "decoders")
    )


def _table(
    to_bytes: Callable[[str], bytes],
    added_to_bytes: Callable[[str], bytes],
    vocab: Mapping[str, int],
    added: Mapping[int, str],
) -> list[bytes]:
    largest = max([*vocab.values(), *added], default=-1)
    if largest >= _MOST_TOKENS:
        raise TokenizerError(f"tokenizer.json: token id {largest} is not below {_MOST_TOKENS}")
    table = [b""] * (largest + 1)
    for token, token_id in vocab.items():
        if token_id not in added:
            table[token_id] = to_bytes(token)
    for token_id, content in added.items():
        table[token_id] = added_to_bytes(content)
    return table


def _converters(definition: Mapping[str, Any]) -> tuple[Callable[[str], bytes], Callable[[str], bytes]]:
    """For the model's own tokens, and for added ones."""
    decoders = {step["type"] for step in _steps(definition.get("decoder"), "decoders")}
    splitters = {step["type"] for step in _steps(definition.get("pre_tokenizer"), "pretokenizers")}
    if "ByteLevel" in decoders or (not decoders and "ByteLevel" in splitters):
        # An added token is found in plain text and stands for it, whatever alphabet its characters happen to be in.
        return _byte_level(_byte_of_character()), str.encode
    if decoders & {"Metaspace", "ByteFallback", "Replace"}:
        # Added tokens of this kind are written with marks too, as runs of spaces.
        return _sentencepiece(" "), _sentencepiece(" ")
    raise TokenizerError(
        f"tokenizer.json: decoder {', '.join(sorted(decoders)) or 'none'} is not supported; "
        "supported are byte-level BPE and sentencepiece"
    )


def _steps(component: Mapping[str, Any] | None, inner: str) -> Iterator[Mapping[str, Any]]:
    """A component of tokenizer.json, or the components that its Sequence holds.

    Raises TokenizerError for one that does not say what it is: the library guesses then, by the other keys.
    """
    if component is None:
        return
    if not isinstance(component, Mapping) or not isinstance(component.get("type"), str):
        raise TokenizerError(f"tokenizer.json: a component of {inner} has no type: {reprlib.repr(component)}")
    if component["type"] != "Sequence":
        yield component
    elif isinstance(steps := component.get(inner), list):
        for step in steps:
            yield from _steps(step, inner)
    else:
        raise TokenizerError(f"tokenizer.json: a Sequence has no list of {inner}")


def _byte_of_character() -> dict[str, int]:
    """GPT-2's printable stand-in for each byte: itself where it is printable Latin-1, else 256 upwards in order."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    stand_ins = {chr(byte): byte for byte in printable}
    return stand_ins | {chr(256 + index): byte for index, byte in enumerate(others)}


def _byte_level(byte_of: Mapping[str, int]) -> Callable[[str], bytes]:
    def to_bytes(token: str) -> bytes:
        try:
            return bytes(byte_of[character] for character in token)
        except KeyError:
            # Not written in the byte alphabet, so it is plain text, as the tokenizer's own decoder takes it.
            return token.encode()

    return to_bytes


def _sentencepiece(space: str) -> Callable[[str], bytes]:
    def to_bytes(token: str) -> bytes:
        if match := _BYTE_TOKEN.fullmatch(token):
            return bytes([int(match[1], 16)])
        return token.replace(_SPACE_MARK, space).encode()

    return to_bytes
