"""config.json to ModelSpec: old and new spellings, and clear refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PretrainedConfig
from weir.models.errors import ModelError, ModelFolderError, UnsupportedModelError
from weir.models.rope import LinearScaling, Llama3Scaling, RopeSpec, YarnScaling
from weir.models.rope_table import rope_table
from weir.models.spec import ModelSpec

from tests.unit.models import tiny

# meta-llama/Llama-3.1-8B-Instruct, as its config.json spells it (before transformers 5).
LLAMA_3_1: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "bos_token_id": 128000,
    "eos_token_id": [128001, 128008, 128009],
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 128256,
}
# Qwen/Qwen2.5-0.5B-Instruct.
QWEN_2_5: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "hidden_act": "silu",
    "hidden_size": 896,
    "intermediate_size": 4864,
    "max_position_embeddings": 32768,
    "max_window_layers": 21,
    "model_type": "qwen2",
    "num_attention_heads": 14,
    "num_hidden_layers": 24,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "sliding_window": 32768,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "use_sliding_window": False,
    "vocab_size": 151936,
}


def test_llama_3_1_is_read_with_its_rope_scaling() -> None:
    spec = ModelSpec.from_config(LLAMA_3_1)
    assert spec.head_dim == 128
    assert spec.num_kv_heads == 8
    assert spec.rope == RopeSpec(500000.0, Llama3Scaling(8.0, 1.0, 4.0, 8192))
    assert spec.dtype == "bfloat16"
    assert spec.sliding_window == (None,) * 32
    assert [spec.qkv_bias, spec.o_bias, spec.qk_norm, spec.tie_word_embeddings] == [False] * 4


def test_kv_bytes_per_token_of_llama_2_7b_are_half_a_mebibyte_in_fp16() -> None:
    config = LLAMA_3_1 | {"num_key_value_heads": 32, "rope_scaling": None}
    assert ModelSpec.from_config(config).kv_bytes_per_token(2) == 512 * 1024


def test_qwen_2_5_has_a_bias_on_qkv_only_and_no_window_unless_it_is_used() -> None:
    spec = ModelSpec.from_config(QWEN_2_5)
    assert spec.qkv_bias
    assert not spec.o_bias
    assert spec.sliding_window == (None,) * 24
    used = ModelSpec.from_config(QWEN_2_5 | {"use_sliding_window": True})
    assert used.sliding_window == (None,) * 21 + (32768,) * 3


def test_layer_types_say_which_layers_have_the_window() -> None:
    types = ["sliding_attention", "full_attention"] * 12
    spec = ModelSpec.from_config(QWEN_2_5 | {"use_sliding_window": True, "layer_types": types})
    assert spec.sliding_window == (32768, None) * 12
    with pytest.raises(UnsupportedModelError, match="layer_types must name 24 layers"):
        ModelSpec.from_config(QWEN_2_5 | {"use_sliding_window": True, "layer_types": ["linear_attention"] * 24})


@pytest.mark.parametrize("name", list(tiny.configs()))
def test_old_and_new_spelling_of_a_config_read_the_same(name: str, tmp_path: Path) -> None:
    tiny.configs()[name].save_pretrained(tmp_path)
    new = json.loads((tmp_path / "config.json").read_text())
    old = {key: value for key, value in new.items() if key not in ("rope_parameters", "dtype")}
    parameters = dict(new["rope_parameters"])
    old["rope_theta"] = parameters.pop("rope_theta")
    if parameters["rope_type"] != "default":
        old["rope_scaling"] = {"type": parameters.pop("rope_type"), **parameters}
    old["torch_dtype"] = new.get("dtype", "float32")
    assert ModelSpec.from_config(old) == ModelSpec.from_config(new)


def test_a_config_that_transformers_wrote_keeps_its_model_type_without_architectures() -> None:
    config: PretrainedConfig = tiny.configs()["qwen3"]
    spec = ModelSpec.from_config(config.to_dict() | {"architectures": None})
    assert spec.architecture == "Qwen3ForCausalLM"
    assert (spec.qk_norm, spec.head_dim, spec.hidden_size // spec.num_heads) == (True, 24, 8)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architectures": ["MixtralForCausalLM"]}, "MixtralForCausalLM is not supported.*LlamaForCausalLM"),
        ({"architectures": None, "model_type": "gpt2"}, "model_type 'gpt2'"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quant_method gptq"),
        ({"torch_dtype": "float8_e4m3fn"}, "dtype float8_e4m3fn"),
        ({"num_key_value_heads": 5}, r"num_attention_heads \(32\) is not a multiple of num_key_value_heads \(5\)"),
        ({"head_dim": 7}, r"head_dim \(7\) is odd"),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, "rope scaling 'longrope'"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1.0}}}, "differ between layers"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5"),
    ],
)
def test_what_the_decoder_does_not_implement_is_refused_by_name(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        ModelSpec.from_config(LLAMA_3_1 | change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": None}, "no hidden_size"),
        ({"vocab_size": "many"}, "vocab_size must be an integer from 1 to 4194304, not 'many'"),
        ({"num_hidden_layers": 0}, "num_hidden_layers must be an integer from 1 to 1024, not 0"),
        ({"rope_scaling": {"rope_type": "linear"}}, "rope_scaling has no factor"),
    ],
)
def test_a_config_with_missing_or_bad_numbers_is_refused_by_key(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelFolderError, match=message):
        ModelSpec.from_config(LLAMA_3_1 | change)


def test_qwen3_must_name_its_head_dim() -> None:
    config = tiny.configs()["qwen3"].to_dict()
    with pytest.raises(ModelFolderError, match="no head_dim"):
        ModelSpec.from_config({key: value for key, value in config.items() if key != "head_dim"})


def test_yarn_extends_the_model_length() -> None:
    scaling = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    spec = ModelSpec.from_config(QWEN_2_5 | {"rope_scaling": scaling})
    assert isinstance(spec.rope.scaling, YarnScaling)
    # 0.1 * ln(4) + 1, from the paper.
    assert spec.rope.scaling.attention_factor == pytest.approx(1.1386294)
    assert spec.max_position_embeddings == 131072


def test_linear_scaling_is_read() -> None:
    spec = ModelSpec.from_config(LLAMA_3_1 | {"rope_scaling": {"type": "linear", "factor": 2.0}})
    assert spec.rope == RopeSpec(500000.0, LinearScaling(2.0))


@pytest.mark.parametrize("text", ["{", "[]", "\x00"])
def test_a_damaged_config_file_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelFolderError, match=r"config\.json"):
        ModelSpec.from_folder(tmp_path)


def test_a_folder_without_config_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelFolderError, match=r"has no config\.json"):
        ModelSpec.from_folder(tmp_path)


# -- configs of strangers -----------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats()
    | st.sampled_from([0, 1, -1, 2**31, 10**9, 10**400, "", "2", "llama3", "yarn", "dynamic", "Qwen3ForCausalLM"])
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
ROPE = {"rope_type", "type", "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}
ROPE |= {"attention_factor", "mscale", "mscale_all_dim", "beta_fast", "beta_slow", "truncate", "rope_theta"}
OPTIONAL = {"architectures", "model_type", "head_dim", "layer_types", "use_sliding_window", "sliding_window", "dtype"}
OPTIONAL |= {"max_window_layers", "rope_parameters", "partial_rotary_factor", "quantization_config", "attention_bias"}


@settings(max_examples=1500, deadline=None)
@given(
    base=st.sampled_from([LLAMA_3_1, QWEN_2_5, QWEN_2_5 | {"use_sliding_window": True}]),
    changes=st.dictionaries(st.sampled_from(sorted({*LLAMA_3_1, *OPTIONAL})), JSON, max_size=3),
    rope=st.none() | st.dictionaries(st.sampled_from(sorted(ROPE)), JSON, max_size=5),
    kind=st.sampled_from(["default", "linear", "llama3", "yarn"]),
)
def test_any_config_is_a_spec_that_computes_or_an_error_that_names_it(
    base: dict[str, Any], changes: dict[str, Any], rope: dict[str, Any] | None, kind: str
) -> None:
    config = base | changes
    if rope is not None:
        config |= {
            "rope_scaling": {"rope_type": kind, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0} | rope
        }
    try:
        spec = ModelSpec.from_config(config)
    except ModelError:
        return
    assert len(spec.sliding_window) == spec.num_layers
    assert spec.kv_bytes_per_token(2) > 0
    cos, sin = rope_table(spec.rope, spec.head_dim, 3, torch.device("cpu"))
    assert cos.isfinite().all()
    assert sin.isfinite().all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps must be a number above 0, at most 1, not nan"),
        ({"rms_norm_eps": "1e-5"}, "rms_norm_eps must be a number"),
        ({"attention_bias": "false"}, "attention_bias must be true or false, not 'false'"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings must be true or false, not 1"),
        ({"architectures": "LlamaForCausalLM"}, "architectures must be a list of texts"),
        ({"hidden_size": True}, "hidden_size must be an integer from 1 to 131072, not True"),
        ({"hidden_size": 4096.0}, "hidden_size must be an integer"),
        ({"rope_theta": 1}, "rope_theta must be a number above 1"),
        ({"rope_scaling": "yarn"}, "rope_scaling must be an object"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 1e5}}, "YaRN extends to 13107200000 positions"),
        ({"vocab_size": "x" * 10**6}, r"vocab_size must be an integer from 1 to 4194304, not '.{1,40}'$"),
    ],
)
def test_a_value_of_another_type_or_range_is_refused_by_key(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelFolderError, match=message):
        ModelSpec.from_config(LLAMA_3_1 | change)


@pytest.mark.parametrize(
    ("key", "most"),
    [
        ("vocab_size", 2**22),
        ("hidden_size", 2**17),
        ("intermediate_size", 2**19),
        ("num_hidden_layers", 1024),
        ("num_attention_heads", 1024),
        ("num_key_value_heads", 1024),
        ("head_dim", 2**11),
        ("max_position_embeddings", 2**30),
    ],
)
def test_a_size_is_taken_at_its_bounds_and_refused_one_past_them(key: str, most: int) -> None:
    heads = {"num_attention_heads": 1024, "num_key_value_heads": 1, "head_dim": 2}
    ModelSpec.from_config(LLAMA_3_1 | heads | {key: most})
    ModelSpec.from_config(LLAMA_3_1 | heads | {key: 2 if key == "head_dim" else 1})
    for value in (0, most + 1):
        with pytest.raises(ModelFolderError, match=f"{key} must be an integer from 1 to {most}, not {value}"):
            ModelSpec.from_config(LLAMA_3_1 | heads | {key: value})
