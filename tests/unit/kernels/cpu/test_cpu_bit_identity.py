"""A request's logits are the same bits alone, in any batch, at any chunk size and with any number of threads."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.unit.kernels.cpu.feeding import Steps, in_chunks, logits_of
from tests.unit.kernels.cpu.models import fused, make_spec, make_weights, random_tokens

# Long enough for a second split of the KV cache, whose boundary is at 512.
LENGTH = 530
VARIANTS: dict[str, dict[str, Any]] = {
    "grouped": {},
    "one kv head": {"num_heads": 3, "num_kv_heads": 1, "head_dim": 64},
    "window": {"sliding_window": (40, None)},
    "normed and biased": {"qk_norm": True, "qkv_bias": True, "o_bias": True},
}


@pytest.mark.parametrize("variant", list(VARIANTS))
def test_chunks_of_any_size(isa: str, variant: str) -> None:
    spec = make_spec(**VARIANTS[variant])
    decoder = fused(spec, make_weights(spec), isa)
    tokens = random_tokens(spec, LENGTH)
    (whole,) = logits_of(decoder, [tokens])
    for chunk in (13, 64, 500):
        (chunked,) = logits_of(decoder, [tokens], in_chunks(LENGTH, chunk))
        assert torch.equal(chunked, whole)


@pytest.mark.parametrize("variant", list(VARIANTS))
@pytest.mark.parametrize("prompt", [1, 480])
def test_decodes_after_a_prompt_of_any_length(isa: str, variant: str, prompt: int) -> None:
    spec = make_spec(**VARIANTS[variant])
    decoder = fused(spec, make_weights(spec), isa)
    tokens = random_tokens(spec, prompt + 40)
    (whole,) = logits_of(decoder, [tokens])
    (decoded,) = logits_of(decoder, [tokens], [{0: prompt}, *[{0: 1}] * 40])
    assert torch.equal(decoded, whole)


@pytest.mark.parametrize("variant", list(VARIANTS))
def test_any_company(isa: str, variant: str) -> None:
    spec = make_spec(**VARIANTS[variant])
    decoder = fused(spec, make_weights(spec), isa)
    sequences = [random_tokens(spec, count, seed=count) for count in (LENGTH, 3, 64, 90, 31)]
    alone = [logits_of(decoder, [tokens])[0] for tokens in sequences]
    steps: Steps = [
        {0: LENGTH - 4, 1: 1, 2: 60},
        {0: 1, 1: 1, 2: 1, 3: 80},
        {0: 1, 2: 1, 3: 1, 4: 30},
        {0: 1, 1: 1, 2: 1, 3: 1, 4: 1},
        {0: 1, 2: 1, 3: 8},
    ]
    together = logits_of(decoder, sequences, steps)
    for apart, joined in zip(alone, together, strict=True):
        assert torch.equal(joined, apart)


@pytest.mark.parametrize("threads", [1, 3])
def test_any_number_of_threads(isa: str, threads: int) -> None:
    spec = make_spec()
    weights = make_weights(spec)
    tokens = random_tokens(spec, LENGTH)
    steps = [{0: LENGTH - 2}, {0: 1}, {0: 1}]
    expected = logits_of(fused(spec, weights, isa, threads=2), [tokens], steps)
    assert torch.equal(logits_of(fused(spec, weights, isa, threads), [tokens], steps)[0], expected[0])


def test_any_block_size(isa: str) -> None:
    spec = make_spec()
    decoder = fused(spec, make_weights(spec), isa)
    tokens = random_tokens(spec, 100)
    (expected,) = logits_of(decoder, [tokens], block_size=16)
    for block_size in (32, 64, 112):
        assert torch.equal(logits_of(decoder, [tokens], in_chunks(100, 21), block_size)[0], expected)
