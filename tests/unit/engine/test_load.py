"""What is refused at start because it could never work later."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from safetensors.torch import load_file, save_file
from weir.config import ConfigError, EngineSettings, ModelSettings, Settings
from weir.engine.load import load_engine
from weir.models.errors import ModelFolderError, WeightsError

from tests.unit.models import tiny, vocabularies

# 2 (K and V) * 2 layers * 1 head * 16 * 4 bytes = 256 bytes a token.
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 100,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "torch_dtype": "float32",
    "eos_token_id": 0,
}


@pytest.fixture
def folder(tmp_path: Path) -> str:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return str(tmp_path)


def settings(
    folder: str,
    kv_memory: int | None,
    max_model_len: int | None = None,
    kernels: Literal["auto", "cpu", "reference", "triton"] = "reference",
    **engine: Any,
) -> Settings:
    return Settings(
        model=ModelSettings(
            model=folder, load_format="dummy", device="cpu", kernels=kernels, max_model_len=max_model_len
        ),
        engine=EngineSettings(kv_memory_bytes=kv_memory, block_size=16, threads=1, **engine),
    )


def test_a_pool_for_exactly_one_request_of_the_model_length_starts(folder: str) -> None:
    info = load_engine(settings(folder, 7 * 16 * 256)).info  # 100 tokens take 7 blocks
    assert (info.kv_total_tokens, info.max_model_len, info.kv_bytes_per_token) == (112, 100, 256)


def test_a_pool_that_cannot_hold_one_request_of_the_model_length_is_refused(folder: str) -> None:
    with pytest.raises(ConfigError, match=r"holds 96 tokens, but one request of max-model-len 100 needs"):
        load_engine(settings(folder, 6 * 16 * 256))


def test_a_pool_of_one_block_is_refused_unless_the_model_length_fits_it(folder: str) -> None:
    with pytest.raises(ConfigError, match="holds 16 tokens"):
        load_engine(settings(folder, 16 * 256))
    assert load_engine(settings(folder, 16 * 256, max_model_len=16)).info.kv_total_tokens == 16


def test_a_model_length_beyond_the_models_own_is_refused(folder: str) -> None:
    with pytest.raises(ConfigError, match="max-model-len 101 is more than the model's own limit of 100"):
        load_engine(settings(folder, 2**20, max_model_len=101))


def test_the_pool_is_never_larger_than_what_can_be_used_at_once(folder: str) -> None:
    info = load_engine(settings(folder, 2**30, max_running=3)).info
    assert info.kv_total_tokens == 3 * 7 * 16


def test_a_float8_kv_cache_holds_four_times_the_tokens_of_a_float32_one(folder: str) -> None:
    info = load_engine(settings(folder, 7 * 16 * 256, kv_cache_dtype="fp8_e4m3")).info
    assert (info.kv_bytes_per_token, info.kv_total_tokens) == (64, 4 * 112)


@pytest.mark.parametrize("kernels", ["auto", "cpu"])
def test_a_float8_kv_cache_is_refused_where_the_kernels_have_none(folder: str, kernels: Literal["auto", "cpu"]) -> None:
    with pytest.raises(ConfigError, match="torch kernels have no KV cache of dtype fp8_e4m3"):
        load_engine(settings(folder, 2**20, kernels=kernels, kv_cache_dtype="fp8_e4m3"))


def test_kernels_that_do_not_run_on_the_device_are_refused(folder: str) -> None:
    with pytest.raises(ConfigError, match="the triton kernels need a GPU"):
        load_engine(settings(folder, 2**20, kernels="triton"))


def test_a_gpu_that_is_not_there_is_refused(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    model = ModelSettings(model=folder, load_format="dummy", device="cuda")
    with pytest.raises(ConfigError, match="device cuda was asked for, and torch finds no GPU; use device cpu or auto"):
        load_engine(Settings(model=model))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"max_position_embeddings": 10**8},
            r"one request of max-model-len 100000000 needs 23.84 GiB",
        ),
        (
            {"hidden_size": 2**17, "head_dim": 16, "num_hidden_layers": 1024, "intermediate_size": 2**19},
            "the weights of",
        ),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers must be an integer from 1 to 1024, not 1000000000"),
        ({"max_position_embeddings": 2**31}, "max_position_embeddings must be an integer from 1 to 1073741824"),
    ],
)
def test_what_no_memory_holds_is_refused_before_any_is_taken(
    change: dict[str, int], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """10⁸ positions or 10⁹ layers took gigabytes before a word."""
    monkeypatch.setattr("weir.engine.load.build_decoder", lambda *_, **__: pytest.fail("memory was taken"))
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | change))
    with pytest.raises((ConfigError, ModelFolderError), match=message):
        load_engine(settings(str(tmp_path), 2**30))


def test_tables_are_as_long_as_what_is_served_of_a_model_of_any_length(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"max_position_embeddings": 2**30}))
    core = load_engine(settings(str(tmp_path), 2**20, max_model_len=5))
    assert core.info.max_model_len == 5


def test_a_model_whose_logits_are_not_finite_is_refused_with_what_may_be_wrong(tmp_path: Path) -> None:
    """Weights that float16 holds may still compute what it does not."""
    config = tiny.configs()["llama2"]
    tiny.save(tiny.make(config), tmp_path)
    vocabularies.save(vocabularies.byte_level(), tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    for name in ("gate", "up"):
        tensors[f"model.layers.0.mlp.{name}_proj.weight"] *= 1e4
    save_file(tensors, tmp_path / "model.safetensors")

    def load(dtype: Literal["float16", "float32"]) -> None:
        model = ModelSettings(model=str(tmp_path), dtype=dtype, device="cpu", kernels="reference")
        load_engine(Settings(model=model, engine=EngineSettings(kv_memory_bytes=2**22, block_size=16)))

    load("float32")
    with pytest.raises(WeightsError, match=r"\d+ of 2048 logits of a first prompt are not finite"):
        load("float16")
