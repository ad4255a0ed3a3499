"""A Hugging Face config.json becomes a ModelSpec: every fact the decoder needs, checked once."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from weir.models.config_values import ConfigValues
from weir.models.errors import UnsupportedModelError
from weir.models.explain import require_folder
from weir.models.json_file import read_json
from weir.models.rope import MOST_POSITIONS, RopeSpec, rope_from_config


@dataclass(frozen=True, slots=True)
class _Family:
    """What differs between the architectures. A bias of None: present when the config sets attention_bias."""

    qkv_bias: bool | None = False
    o_bias: bool | None = False
    qk_norm: bool = False
    window: Literal["no layer", "all layers", "by layer"] = "no layer"


_FAMILIES = {
    "LlamaForCausalLM": _Family(qkv_bias=None, o_bias=None),
    "MistralForCausalLM": _Family(window="all layers"),
    "Qwen2ForCausalLM": _Family(qkv_bias=True, window="by layer"),
    "Qwen3ForCausalLM": _Family(qkv_bias=None, o_bias=None, qk_norm=True, window="by layer"),
}
_BY_MODEL_TYPE = {name.removesuffix("ForCausalLM").lower(): name for name in _FAMILIES}
_DTYPES = ("float32", "bfloat16", "float16")
# Far beyond any model there is; what a config asks for within them is checked against the memory before it is taken.
_MOST = {
    "vocab_size": 2**22,
    "hidden_size": 2**17,
    "num_hidden_layers": 2**10,
    "num_attention_heads": 2**10,
    "num_key_value_heads": 2**10,
    "head_dim": 2**11,
    "intermediate_size": 2**19,
    "max_position_embeddings": MOST_POSITIONS,
    "sliding_window": 2**31,
}


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One dense decoder-only model.

    sliding_window: tokens a query sees, itself included, for each layer; None is all of them.
    max_position_embeddings: longest sequence in tokens.
    dtype: the checkpoint's own, as the config names it.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    rms_norm_eps: float
    rope: RopeSpec
    sliding_window: tuple[int | None, ...]
    qkv_bias: bool
    o_bias: bool
    qk_norm: bool
    tie_word_embeddings: bool
    max_position_embeddings: int
    hidden_act: str
    dtype: str

    @classmethod
    def from_folder(cls, folder: str | Path) -> ModelSpec:
        """Read config.json. Raises ModelFolderError (no model folder, or damaged) and what `from_config` raises."""
        folder = Path(folder)
        require_folder(folder)
        return cls.from_config(read_json(folder / "config.json"))

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> ModelSpec:
        """Raises UnsupportedModelError naming the architecture or option that is not implemented, ModelFolderError
        naming a key that is missing or has another type or range."""
        values = ConfigValues(config)
        architecture = _architecture(values)
        family = _FAMILIES[architecture]
        _refuse_unsupported_options(values, architecture)
        hidden_size, num_heads = _size(values, "hidden_size"), _size(values, "num_attention_heads")
        num_kv_heads = _size(values, "num_key_value_heads", num_heads)
        if num_heads % num_kv_heads:
            raise UnsupportedModelError(
                f"num_attention_heads ({num_heads}) is not a multiple of num_key_value_heads ({num_kv_heads})"
            )
        attention_bias = values.flag("attention_bias")
        rope = rope_from_config(values)
        num_layers = _size(values, "num_hidden_layers")
        return cls(
            architecture=architecture,
            vocab_size=_size(values, "vocab_size"),
            hidden_size=hidden_size,
            num_layers=num_layers,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=_head_dim(values, architecture, hidden_size, num_heads),
            intermediate_size=_size(values, "intermediate_size"),
            rms_norm_eps=values.number("rms_norm_eps", 1e-6, most=1.0),
            rope=rope,
            sliding_window=_sliding_window(values, family, num_layers),
            qkv_bias=attention_bias if family.qkv_bias is None else family.qkv_bias,
            o_bias=attention_bias if family.o_bias is None else family.o_bias,
            qk_norm=family.qk_norm,
            tie_word_embeddings=values.flag("tie_word_embeddings"),
            max_position_embeddings=rope.max_positions(_size(values, "max_position_embeddings")),
            hidden_act="silu",
            dtype=_dtype(values),
        )

    def kv_bytes_per_token(self, bytes_per_element: int) -> int:
        """2 (K and V) * layers * kv_heads * head_dim * bytes."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * bytes_per_element


def _architecture(values: ConfigValues) -> str:
    named = values.texts("architectures")
    model_type = values.text("model_type", "")
    architecture = named[0] if named else _BY_MODEL_TYPE.get(model_type)
    if architecture not in _FAMILIES:
        name = architecture or f"model_type {model_type!r}"
        raise UnsupportedModelError(f"architecture {name[:80]} is not supported; supported: {', '.join(_FAMILIES)}")
    return architecture


def _refuse_unsupported_options(values: ConfigValues, architecture: str) -> None:
    if quantization := values.section("quantization_config"):
        method = quantization.text("quant_method", "unknown")
        raise UnsupportedModelError(f"{architecture}: quantised checkpoints are not supported (quant_method {method})")
    if values.flag("mlp_bias"):
        raise UnsupportedModelError(f"{architecture}: mlp_bias is not supported")
    if (activation := values.text("hidden_act", "silu")) != "silu":
        raise UnsupportedModelError(f"{architecture}: hidden_act {activation!r} is not supported, only 'silu'")


def _size(values: ConfigValues, key: str, default: int | None = None) -> int:
    return values.integer(key, default, most=_MOST[key])


def _head_dim(values: ConfigValues, architecture: str, hidden_size: int, num_heads: int) -> int:
    # Qwen3's head_dim is independent of hidden_size, so a quotient would be a guess.
    derived = None if architecture == "Qwen3ForCausalLM" else hidden_size // num_heads
    head_dim = _size(values, "head_dim", derived)
    if head_dim % 2:
        raise UnsupportedModelError(f"head_dim ({head_dim}) is odd; rotary embeddings need pairs")
    return head_dim


def _sliding_window(values: ConfigValues, family: _Family, num_layers: int) -> tuple[int | None, ...]:
    used = family.window == "all layers" or (family.window == "by layer" and values.flag("use_sliding_window"))
    if not used or "sliding_window" not in values:
        return (None,) * num_layers
    window = _size(values, "sliding_window")
    if family.window == "all layers":
        return (window,) * num_layers
    layer_types = values.texts("layer_types")
    if "layer_types" not in values:
        first = values.integer("max_window_layers", 28, least=0, most=_MOST["num_hidden_layers"])
        return tuple(window if layer >= first else None for layer in range(num_layers))
    windows: dict[str, int | None] = {"sliding_attention": window, "full_attention": None}
    if len(layer_types) != num_layers or not set(layer_types) <= set(windows):
        got = reprlib.repr(layer_types)
        raise UnsupportedModelError(
            f"layer_types must name {num_layers} layers, each one of {', '.join(windows)}; got {got}"
        )
    return tuple(windows[name] for name in layer_types)


def _dtype(values: ConfigValues) -> str:
    name = values.text("dtype", values.text("torch_dtype", "float32")).removeprefix("torch.")
    if name not in _DTYPES:
        raise UnsupportedModelError(f"dtype {name[:80]} is not supported; supported: {', '.join(_DTYPES)}")
    return name
