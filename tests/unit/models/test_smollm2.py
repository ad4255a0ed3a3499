"""The demo model's logits against transformers in float32, over text of many kinds and lengths."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel
from weir.models.decoder import Decoder
from weir.models.loader import load_weights
from weir.models.spec import ModelSpec
from weir.models.tokenizer import Tokenizer
from weir_kernels.dispatch import pick

from tests.unit.models import tiny
from tests.unit.models.paging import PagedSequences

pytestmark = pytest.mark.model

_PARAGRAPH = "The weir holds the river at a set level and lets through only what the channel can carry. "
PROMPTS = {
    "one token": "a",
    "one word": "Hello",
    "question": "What is the capital of France?",
    "list": "1. apples\n2. pears\n3. plums\n4.",
    "code": "def fibonacci(n: int) -> int:\n    if n < 2:\n        return n\n    return fibonacci(n - 1) +",
    "json": '{"name": "weir", "tags": ["llm", "grpc"], "size": 135e6, "ok": tru',
    "chinese": "河流流向大海，水坝保持水位。请用一句话解释什么是大语言模型：",
    "emoji": "🙂🚀👩‍👩‍👧 The weather today is ☀️ and tomorrow it will be 🌧️ so bring an",
    "german": "Größe, Maß und Übung: Der Fluss fließt über das Wehr, weil",
    "chat": "<|im_start|>user\nWhy is the sky blue?<|im_end|>\n<|im_start|>assistant\n",
    "300 tokens": _PARAGRAPH * 15,
    "800 tokens": _PARAGRAPH * 40,
    "1,500 tokens": _PARAGRAPH * 75,
}


@pytest.fixture(scope="module")
def reference(model_dir: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def decoder(model_dir: Path) -> Decoder:
    cpu, spec = torch.device("cpu"), ModelSpec.from_folder(model_dir)
    return Decoder(spec, load_weights(model_dir, spec, torch.float32, cpu), pick(cpu, "cpu"))


@pytest.fixture(scope="module")
def tokenizer(model_dir: Path) -> Tokenizer:
    return Tokenizer(model_dir)


@pytest.mark.parametrize("name", PROMPTS)
def test_prefill_logits_equal_those_of_transformers(
    name: str, decoder: Decoder, reference: PreTrainedModel, tokenizer: Tokenizer
) -> None:
    tokens = tokenizer.encode(PROMPTS[name])
    first_wanted = max(0, len(tokens) - 64)  # the vocabulary is large: all logits of all tokens take minutes
    paged = PagedSequences(decoder, [tokens], block_size=32, first_wanted=first_wanted)
    while paged.computed[0] < len(tokens):
        paged.step({0: min(512, len(tokens) - paged.computed[0])})
    actual, expected = paged.all_logits(0), tiny.reference_logits(reference, tokens, first_wanted)
    assert (actual - expected).abs().max() <= 1e-4 * expected.abs().max()
    assert torch.equal(actual.argmax(-1), expected.argmax(-1))


def test_the_prompts_span_one_to_fifteen_hundred_tokens(tokenizer: Tokenizer) -> None:
    lengths = [len(tokenizer.encode(text)) for text in PROMPTS.values()]
    assert min(lengths) == 1
    assert 1450 <= max(lengths) <= 1550


@pytest.mark.slow
def test_greedy_decoding_in_a_ragged_batch_writes_what_transformers_writes(
    decoder: Decoder, reference: PreTrainedModel, tokenizer: Tokenizer
) -> None:
    prompts = [tokenizer.encode(text) for name, text in PROMPTS.items() if not name.endswith("00 tokens")]
    steps = 12
    expected = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        options = {"attention_mask": torch.ones_like(ids), "max_new_tokens": steps, "do_sample": False}
        written = reference.generate(ids, **options, eos_token_id=None)
        expected.append(written[0].tolist())

    texts = [[*prompt, *[0] * steps] for prompt in prompts]
    paged = PagedSequences(decoder, texts, block_size=32)
    paged.step({index: len(prompt) for index, prompt in enumerate(prompts)})
    for step in range(steps):
        for index, prompt in enumerate(prompts):
            texts[index][len(prompt) + step] = int(paged.logits[index][-1][-1].argmax())
        if step + 1 < steps:
            paged.step(dict.fromkeys(range(len(prompts)), 1))
    assert texts == expected
