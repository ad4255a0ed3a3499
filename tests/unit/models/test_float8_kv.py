"""A float8 KV cache costs a byte a number, and little precision."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from weir.models.decoder import Decoder
from weir.models.kv_cache import resolve_kv_dtype
from weir.models.loader import Weights, dummy_weights
from weir.models.spec import ModelSpec
from weir_kernels import reference
from weir_kernels.dispatch import pick

from tests.unit.models import tiny
from tests.unit.models.paging import PagedSequences

CPU = torch.device("cpu")
FLOAT8 = torch.float8_e4m3fn
PROMPT = tiny.random_tokens(40)


@pytest.fixture(scope="module")
def spec() -> ModelSpec:
    return ModelSpec.from_config(tiny.configs()["qwen3"].to_dict() | {"architectures": ["Qwen3ForCausalLM"]})


def weights(spec: ModelSpec, dtype: torch.dtype) -> Weights:
    return dummy_weights(spec, dtype, CPU)


def logits(decoder: Decoder) -> torch.Tensor:
    paged = PagedSequences(decoder, [PROMPT])
    paged.step({0: 17})
    paged.step({0: 15})
    for _ in range(8):
        paged.step({0: 1})
    return paged.all_logits(0)


def test_logits_over_a_float8_cache_are_near_those_over_a_float32_one(spec: ModelSpec) -> None:
    exact = logits(Decoder(spec, weights(spec, torch.float32), pick(CPU, "reference")))
    rounded = logits(Decoder(spec, weights(spec, torch.float32), pick(CPU, "reference"), FLOAT8))
    cosine = F.cosine_similarity(exact, rounded, dim=1)
    assert cosine.min() > 0.99
    assert not torch.equal(exact, rounded)


def test_the_bytes_of_a_block_are_half_of_those_in_bfloat16(spec: ModelSpec) -> None:
    decoders = [
        Decoder(spec, weights(spec, torch.bfloat16), pick(CPU, "reference"), resolve_kv_dtype(setting, torch.bfloat16))
        for setting in ("auto", "fp8_e4m3")
    ]
    # 2 (K and V) * 3 layers * 2 heads * 24 = 288 numbers a token.
    assert [decoder.kv_bytes_per_block(16) for decoder in decoders] == [16 * 288 * 2, 16 * 288]
    for decoder in decoders:
        cache = decoder.allocate_kv(5, 16)
        stored = sum(layer.numel() * layer.element_size() for layer in (*cache.keys, *cache.values))
        assert stored == 6 * decoder.kv_bytes_per_block(16)


def test_values_beyond_the_range_of_float8_are_clamped_not_lost() -> None:
    k_cache, v_cache = (torch.zeros(2, 4, 1, 4, dtype=FLOAT8) for _ in range(2))
    k = torch.tensor([[[1e6, -1e6, 449.0, 0.25]]])
    reference.write_kv(k, -k, k_cache, v_cache, torch.tensor([5]))
    assert k_cache[1, 1, 0].tolist() == [448.0, -448.0, 448.0, 0.25]
    assert v_cache[1, 1, 0].tolist() == [-448.0, 448.0, -448.0, -0.25]
