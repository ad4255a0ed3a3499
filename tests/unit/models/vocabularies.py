"""Small tokenizers of the two supported kinds, saved as a model folder by transformers."""

from __future__ import annotations

from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

_CORPUS = [
    "The river runs to the sea, and the weir holds it at a set level.",
    "Der Fluss fließt; das Wehr hält ihn. Größe, Maß, Übung.",
    "河流流向大海，水坝保持水位。",
    "def weir(level: int) -> int:\n    return level + 12\n",
]
SPECIAL = ["<unk>", "<s>", "</s>"]
# Marks of a chat: one special, one that is plain text to the tokenizer, one with characters beyond ASCII.
ADDED = [
    AddedToken("<|user|>", special=True),
    AddedToken("[tool]", special=False),
    AddedToken("<｜end｜>", special=True),
]


def byte_level() -> Tokenizer:
    """Byte-level BPE as of GPT-2, Llama 3 and Qwen."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    tokenizer.add_tokens(ADDED)
    return tokenizer


def sentencepiece() -> Tokenizer:
    """BPE with byte fallback and a space before the first word, as of Llama 2 and Mistral; adds a BOS itself."""
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    pieces = [*SPECIAL, *bytes_, "▁", *"abcdefghilmnorstuvwT河流", "th", "the", "▁the", "▁r", "▁river", "er", "▁▁"]
    pieces += ["▁ri", "▁riv"]
    merges = [("t", "h"), ("th", "e"), ("▁", "the"), ("▁", "r"), ("e", "r"), ("▁r", "i"), ("▁ri", "v")]
    merges += [("▁riv", "er"), ("▁", "▁")]
    vocab = {piece: index for index, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer


def save(tokenizer: Tokenizer, folder: Path, chat_template: str | None = None) -> PreTrainedTokenizerFast:
    """Write tokenizer.json, tokenizer_config.json and the chat template; returns transformers' own tokenizer."""
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>", chat_template=chat_template
    )
    wrapped.save_pretrained(folder)
    return wrapped
