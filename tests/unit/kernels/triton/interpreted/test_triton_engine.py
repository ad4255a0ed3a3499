"""The whole engine on a tiny random model: Triton kernels give the tokens that plain torch gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from weir.config import EngineSettings, ModelSettings, Settings
from weir.engine.load import load_engine
from weir.engine.request import Delta, GenerateRequest, SamplingParams
from weir.models import build
from weir_kernels import activation, attention, norm, qkv
from weir_kernels.dispatch import Kernels

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "eos_token_id": 95,
    "bos_token_id": 94,
    "torch_dtype": "float32",
}
QWEN3 = LLAMA | {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "num_hidden_layers": 1}
MISTRAL = LLAMA | {
    "architectures": ["MistralForCausalLM"],
    "model_type": "mistral",
    "sliding_window": 9,
    "num_hidden_layers": 1,
}


def triton_kernels() -> Kernels:
    """What a GPU gets, run by the interpreter."""
    return Kernels(
        name="triton",
        rms_norm=norm.rms_norm,
        add_rms_norm=norm.add_rms_norm,
        norm_rope_write_kv=qkv.norm_rope_write_kv,
        paged_attention=attention.paged_attention,
        silu_mul=activation.silu_mul,
    )


def generate(folder: Path, kernels: str) -> dict[str, list[int]]:
    """Greedy tokens of three requests whose prompts are longer and shorter than a block and than a step's budget."""
    engine = load_engine(
        Settings(
            model=ModelSettings(model=str(folder), dtype="float32", load_format="dummy", device="cpu", kernels=kernels),
            engine=EngineSettings(kv_memory_bytes=2**21, block_size=16, max_running=4, max_batch_tokens=24, threads=1),
        )
    )
    generator = torch.Generator().manual_seed(11)
    for name, length in (("a", 3), ("b", 40), ("c", 1)):
        prompt = tuple(torch.randint(0, 90, (length,), generator=generator).tolist())
        params = SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True)
        engine.submit(GenerateRequest(name, prompt, params))
    tokens: dict[str, list[int]] = {name: [] for name in "abc"}
    while engine.has_work:
        for event in engine.step().events:
            if isinstance(event, Delta):
                tokens[event.request_id] += event.token_ids
    return tokens


@pytest.mark.parametrize("config", [LLAMA, QWEN3, MISTRAL], ids=["llama", "qwen3", "mistral with a window"])
def test_the_engine_gives_the_same_greedy_tokens_as_with_the_reference(
    config: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    expected = generate(tmp_path, "reference")
    assert {name: len(ids) for name, ids in expected.items()} == {"a": 4, "b": 4, "c": 4}
    assert len({tuple(ids) for ids in expected.values()}) == 3
    monkeypatch.setattr(build.dispatch, "pick", lambda device, wanted: triton_kernels())
    assert generate(tmp_path, "triton") == expected
