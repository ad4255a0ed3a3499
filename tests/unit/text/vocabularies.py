"""Small real tokenizers of both kinds, and the byte table of a tokenizer worked out from its own JSON."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from weir.engine.detokenizer import TokenTable

CORPUS = [
    "The river was low, the weir held; café, naïve, Ünïcode, fiancé.",
    "삼겹살과 김치를 먹었다. 한국어 문장입니다.",
    "家族で世界を見た。世世ab",
    "👨‍👩‍👧‍👦 👩🏽‍🚀 🇫🇷 ❤️ 🏳️‍🌈",
    "Привет, мир! مرحبا بالعالم",
]


@dataclass(frozen=True)
class Vocabulary:
    """A tokenizer and the table that weir's streams read."""

    tokenizer: Tokenizer
    table: TokenTable

    @property
    def size(self) -> int:
        return len(self.table.token_bytes)

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids: list[int]) -> str:
        text: str = self.tokenizer.decode(ids, skip_special_tokens=True)
        return text

    def bytes_of(self, ids: list[int]) -> bytes:
        return b"".join(self.table.token_bytes[i] for i in ids)


def byte_level(tokenizer: Tokenizer) -> Vocabulary:
    """GPT-2's byte alphabet: printable bytes stand for themselves, the others for U+0100 onwards, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    byte_of = {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}
    special = _special_ids(tokenizer)
    pieces = _pieces(tokenizer)
    table = [b"" if i in special else bytes(byte_of[char] for char in piece) for i, piece in enumerate(pieces)]
    return Vocabulary(tokenizer, TokenTable(table, special))


def sentencepiece(tokenizer: Tokenizer) -> Vocabulary:
    """The text begins with an added space, which is stripped."""
    return Vocabulary(tokenizer, TokenTable(_unmarked(tokenizer, " "), _special_ids(tokenizer), True))


def metaspace(tokenizer: Tokenizer) -> Vocabulary:
    """The marks of the first token are no text."""
    table = TokenTable(_unmarked(tokenizer, " "), _special_ids(tokenizer), False, _unmarked(tokenizer, ""))
    return Vocabulary(tokenizer, table)


def _unmarked(tokenizer: Tokenizer, space: str) -> list[bytes]:
    """`▁` is a space, `<0xNN>` is one byte, everything else is itself."""
    return [
        bytes([int(match[1], 16)])
        if (match := re.fullmatch(r"<0x([0-9A-F]{2})>", piece))
        else piece.replace("▁", space).encode()
        for piece in _pieces(tokenizer)
    ]


def build_byte_level() -> Vocabulary:
    """Byte-level BPE whose merges split many characters between tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=340,
        special_tokens=["<|end|>", "<|pad|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return byte_level(tokenizer)


def build_sentencepiece() -> Vocabulary:
    """A Llama-style vocabulary: prefix space, byte fallback; emoji and Hangul are not in it, so they become bytes."""
    tokenizer = _with_byte_fallback()
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return sentencepiece(tokenizer)


def build_metaspace() -> Vocabulary:
    """The same pieces, marked and unmarked by Metaspace, which takes every mark from the first token."""
    tokenizer = _with_byte_fallback()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence([decoders.Metaspace(), decoders.ByteFallback()])
    return metaspace(tokenizer)


def _with_byte_fallback() -> Tokenizer:
    words = ["▁", "▁the", "▁river", "▁▁", "the", "世", "界", "é", "П", *"abcdefghijklmnopqrstuvwxyz.,!"]
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    tokenizer = Tokenizer(
        models.BPE({piece: i for i, piece in enumerate(pieces)}, [], unk_token="<unk>", byte_fallback=True)
    )
    tokenizer.add_special_tokens([AddedToken(piece, special=True) for piece in ("<unk>", "<s>", "</s>")])
    return tokenizer


def _pieces(tokenizer: Tokenizer) -> list[str]:
    return [tokenizer.id_to_token(i) or "" for i in range(tokenizer.get_vocab_size())]


def _special_ids(tokenizer: Tokenizer) -> frozenset[int]:
    return frozenset(token["id"] for token in json.loads(tokenizer.to_str())["added_tokens"] if token["special"])
