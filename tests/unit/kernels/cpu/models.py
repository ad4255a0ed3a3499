"""Small decoders with random weights: the fused one, and the same in torch as the reference."""

from __future__ import annotations

from typing import Any

import torch
from weir.models.cpu_decoder import CpuDecoder
from weir.models.decoder import Decoder
from weir.models.loader import Weights
from weir.models.rope import RopeSpec
from weir.models.spec import ModelSpec
from weir.models.tensors import joined_tensors
from weir_kernels import dispatch

_CPU = torch.device("cpu")


def make_spec(**changes: Any) -> ModelSpec:
    """Two layers; sizes that are no multiples of any tile."""
    sizes: dict[str, Any] = {
        "architecture": "LlamaForCausalLM",
        "vocab_size": 101,
        "hidden_size": 50,
        "num_layers": 2,
        "num_heads": 6,
        "num_kv_heads": 2,
        "head_dim": 16,
        "intermediate_size": 37,
        "rms_norm_eps": 1e-5,
        "rope": RopeSpec(theta=10000.0),
        "qkv_bias": False,
        "o_bias": False,
        "qk_norm": False,
        "tie_word_embeddings": False,
        "max_position_embeddings": 2048,
        "hidden_act": "silu",
        "dtype": "bfloat16",
    }
    sizes |= changes
    sizes.setdefault("sliding_window", (None,) * sizes["num_layers"])
    return ModelSpec(**sizes)


def make_weights(spec: ModelSpec, seed: int = 0) -> Weights:
    """bf16; projections keep the size of their input, norms scatter around 1, biases around 0."""
    generator = torch.Generator().manual_seed(seed)
    weights: Weights = {}
    for tensor in joined_tensors(spec):
        values = torch.randn(tensor.shape, generator=generator)
        if tensor.name.endswith("norm"):
            values = 1 + 0.3 * values
        elif tensor.name.endswith(("qkv", "embed")):
            # Scores of several units, so that attention is far from uniform and a wrong mask shows.
            values *= 2 * tensor.shape[-1] ** -0.5 if tensor.name.endswith("qkv") else 1.0
        elif not tensor.name.endswith("bias"):
            values *= tensor.shape[-1] ** -0.5
        weights[tensor.name] = values.to(torch.bfloat16)
    weights.setdefault("lm_head", weights["embed"])
    return weights


def fused(spec: ModelSpec, weights: Weights, isa: str | None = None, threads: int = 2) -> CpuDecoder:
    """The decoder under test; leaves `weights` as they are."""
    return CpuDecoder(spec, dict(weights), threads, isa)


def reference(spec: ModelSpec, weights: Weights, dtype: torch.dtype = torch.float32) -> Decoder:
    """The decoder in plain torch, on the same bf16 weights widened to `dtype`."""
    wide = {name: values.to(dtype) for name, values in weights.items()}
    return Decoder(spec, wide, dispatch.pick(_CPU, "reference"))


def random_tokens(spec: ModelSpec, count: int, seed: int = 0) -> list[int]:
    """Token ids of the model's vocabulary."""
    ids: list[int] = torch.randint(spec.vocab_size, (count,), generator=torch.Generator().manual_seed(seed)).tolist()
    return ids


def error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Root mean square of the difference over that of the expected values. NaN gives NaN, which passes no bound."""
    return float(((actual - expected).square().mean() / expected.square().mean()).sqrt())


def assert_as_good_as_torch(actual: torch.Tensor, exact: torch.Tensor, rounded: torch.Tensor) -> None:
    """The error against float32 is at most twice what bf16 arithmetic in torch makes of the same weights."""
    assert actual.dtype == torch.float32
    assert error(actual, exact) <= 2 * error(rounded, exact) + 1e-3
