"""What the reference implementation says; made once for all end-to-end comparisons."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from .prompts import PROMPTS

MAX_TOKENS = 24


@dataclass(frozen=True)
class Reference:
    """A prompt and its greedy continuation in float32."""

    prompt: tuple[int, ...]
    output: tuple[int, ...]
    text: str


@pytest.fixture(scope="session")
def references(model_dir: Path) -> dict[str, Reference]:
    """What transformers' own generate says, one prompt at a time, with an explicit attention mask."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    found = {}
    for name, text in PROMPTS.items():
        ids = tokenizer(text, return_tensors="pt")["input_ids"][:, :1500]
        with torch.inference_mode():
            output = model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=MAX_TOKENS, do_sample=False
            )[0, ids.shape[1] :]
        kept = output[:-1] if output[-1] == model.generation_config.eos_token_id else output
        said = tokenizer.decode(kept, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        found[name] = Reference(tuple(ids[0].tolist()), tuple(output.tolist()), said)
    return found
