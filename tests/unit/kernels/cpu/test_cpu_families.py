"""The fused decoder against transformers: tiny random checkpoints of every family, and the demo model."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from transformers.models.auto.modeling_auto import AutoModelForCausalLM
from weir.models.build import build_decoder
from weir.models.cpu_decoder import CpuDecoder

from tests.unit.kernels.cpu.feeding import Steps, logits_of
from tests.unit.kernels.cpu.models import assert_as_good_as_torch
from tests.unit.models import tiny

TEXT = """\
A weir is a low wall built across a river to hold its water at a set level. When the river rises, the surplus
flows over the top of the wall, and from the height of the water above it an engineer can tell how much passes
in a second. The first weirs were made for mills: a mill needs the same head of water on every working day, in a
wet spring as in a dry summer. Later they were built for boats, because a barge cannot cross a shallow reach,
and for measuring, because a city wants to know what its river brings. The water does not stop at the weir. It
waits until there is room for it, and then it goes on, in the order in which it came. What the channel cannot
carry stays in the pool above the wall.
"""
STEPS: Steps = [{0: 20, 1: 30}, {0: 1, 1: 1}, {0: 24, 1: 1}]


@pytest.mark.parametrize("family", list(tiny.configs()))
def test_logits_are_those_of_transformers(family: str, tmp_path: Path) -> None:
    rounded = tiny.make(tiny.configs()[family]).to(torch.bfloat16)
    exact = copy.deepcopy(rounded).float()
    tiny.save(rounded, tmp_path)
    sequences = [tiny.random_tokens(45), tiny.random_tokens(32, seed=1)]

    decoder = build_decoder(tmp_path, device="cpu")
    assert isinstance(decoder, CpuDecoder)
    actual = torch.cat(logits_of(decoder, sequences, STEPS))

    expected = torch.cat([tiny.reference_logits(exact, tokens) for tokens in sequences])
    in_bf16 = torch.cat([tiny.reference_logits(rounded, tokens).float() for tokens in sequences])
    assert_as_good_as_torch(actual, expected, in_bf16)


@pytest.mark.model
def test_the_demo_model_agrees_with_float32_transformers(model_dir: Path) -> None:
    tokens = Tokenizer.from_file(str(model_dir / "tokenizer.json")).encode(TEXT).ids
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()
    expected = tiny.reference_logits(model, tokens)

    decoder = build_decoder(model_dir, dtype="bfloat16", device="cpu")
    steps = [{0: len(tokens) - 30}, *[{0: 1}] * 10, {0: 20}]
    (actual,) = logits_of(decoder, [tokens], steps, block_size=32)

    assert torch.nn.functional.cosine_similarity(actual, expected).mean() >= 0.999
    assert (actual.argmax(dim=1) == expected.argmax(dim=1)).float().mean() >= 0.98
