"""Tiny random checkpoints of every family, written by transformers: the independent reference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import (
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

VOCAB = 128
_SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    # Large enough that attention is far from uniform, so that a wrong mask or position shows.
    "initializer_range": 0.3,
}
_LLAMA3 = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0}
_LLAMA3 |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 16}
_YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "original_max_position_embeddings": 32}


def configs() -> dict[str, PretrainedConfig]:
    """One config for each feature that the decoder must tell apart."""
    return {
        "llama2": LlamaConfig(**_SHAPE),
        "llama3-scaled-tied": LlamaConfig(**_SHAPE, rope_parameters=dict(_LLAMA3), tie_word_embeddings=True),
        "llama-linear": LlamaConfig(
            **_SHAPE, rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}
        ),
        "llama-dynamic": LlamaConfig(
            **_SHAPE, rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
        ),
        "llama-yarn": LlamaConfig(**_SHAPE, rope_parameters=dict(_YARN)),
        "llama-attention-bias": LlamaConfig(**_SHAPE, attention_bias=True),
        "smollm2": LlamaConfig(
            **_SHAPE | {"num_attention_heads": 3, "num_key_value_heads": 1}, tie_word_embeddings=True
        ),
        "mistral-window": MistralConfig(**_SHAPE, sliding_window=7),
        "mistral-no-window": MistralConfig(**_SHAPE, sliding_window=None, head_dim=16),
        "qwen2": Qwen2Config(**_SHAPE, tie_word_embeddings=True),
        "qwen2-window-by-layer": Qwen2Config(**_SHAPE, use_sliding_window=True, sliding_window=5, max_window_layers=1),
        "qwen3": Qwen3Config(**_SHAPE, head_dim=24),
        "qwen3-tied-bias": Qwen3Config(**_SHAPE, head_dim=8, attention_bias=True, tie_word_embeddings=True),
    }


def make(config: PretrainedConfig) -> PreTrainedModel:
    """A float32 model in which no parameter has a value that hides it: biases are not 0 and norms are not 1."""
    torch.manual_seed(0)
    # eager: attention written out in torch, not the SDPA kernel that the decoder uses too.
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.3)
    return model.eval()


def save(model: PreTrainedModel, folder: Path, **options: Any) -> Path:
    """Write config.json and safetensors as transformers does."""
    model.save_pretrained(folder, **options)
    return folder


@torch.no_grad()
def reference_logits(model: PreTrainedModel, tokens: list[int], first_wanted: int = 0) -> torch.Tensor:
    """[len(tokens) - first_wanted, V] float32."""
    ids = torch.tensor([tokens])
    return model(ids, attention_mask=torch.ones_like(ids), logits_to_keep=len(tokens) - first_wanted).logits[0]


def random_tokens(count: int, seed: int = 0) -> list[int]:
    """Token ids of the tiny vocabulary."""
    return torch.randint(0, VOCAB, (count,), generator=torch.Generator().manual_seed(seed)).tolist()
