"""A Hugging Face config.json becomes a ModelSpec: every fact the decoder needs, checked once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from weir.models.errors import ModelFolderError, UnsupportedModelError
from weir.models.explain import require_folder
from weir.models.json_file import read_json
from weir.models.rope import RopeSpec, rope_from_config


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
    bos_token_id: int | None
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
        naming a key that is missing or no number."""
        architecture = _architecture(config)
        family = _FAMILIES[architecture]
        _refuse_unsupported_options(config, architecture)
        hidden_size, num_heads = _positive(config, "hidden_size"), _positive(config, "num_attention_heads")
        num_kv_heads = _positive(config, "num_key_value_heads", num_heads)
        if num_heads % num_kv_heads:
            raise UnsupportedModelError(
                f"num_attention_heads ({num_heads}) is not a multiple of num_key_value_heads ({num_kv_heads})"
            )
        attention_bias = bool(config.get("attention_bias", False))
        rope = rope_from_config(config)
        num_layers = _positive(config, "num_hidden_layers")
        return cls(
            architecture=architecture,
            vocab_size=_positive(config, "vocab_size"),
            hidden_size=hidden_size,
            num_layers=num_layers,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=_head_dim(config, architecture, hidden_size, num_heads),
            intermediate_size=_positive(config, "intermediate_size"),
            rms_norm_eps=float(config.get("rms_norm_eps", 1e-6)),
            rope=rope,
            sliding_window=_sliding_window(config, family, num_layers),
            qkv_bias=attention_bias if family.qkv_bias is None else family.qkv_bias,
            o_bias=attention_bias if family.o_bias is None else family.o_bias,
            qk_norm=family.qk_norm,
            tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
            max_position_embeddings=rope.max_positions(_positive(config, "max_position_embeddings")),
            hidden_act=str(config.get("hidden_act", "silu")),
            bos_token_id=config.get("bos_token_id"),
            dtype=_dtype(config),
        )

    def kv_bytes_per_token(self, bytes_per_element: int) -> int:
        """2 (K and V) * layers * kv_heads * head_dim * bytes."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * bytes_per_element


def _architecture(config: Mapping[str, Any]) -> str:
    named = config.get("architectures") or []
    architecture = named[0] if named else _BY_MODEL_TYPE.get(str(config.get("model_type")))
    if architecture not in _FAMILIES:
        name = architecture or f"model_type {config.get('model_type')!r}"
        raise UnsupportedModelError(f"architecture {name} is not supported; supported: {', '.join(_FAMILIES)}")
    return str(architecture)


def _refuse_unsupported_options(config: Mapping[str, Any], architecture: str) -> None:
    if config.get("quantization_config"):
        method = config["quantization_config"].get("quant_method", "unknown")
        raise UnsupportedModelError(f"{architecture}: quantised checkpoints are not supported (quant_method {method})")
    if config.get("mlp_bias"):
        raise UnsupportedModelError(f"{architecture}: mlp_bias is not supported")
    if (activation := config.get("hidden_act", "silu")) != "silu":
        raise UnsupportedModelError(f"{architecture}: hidden_act {activation!r} is not supported, only 'silu'")


def _positive(config: Mapping[str, Any], key: str, default: int | None = None) -> int:
    value = config.get(key)
    if value is None:
        value = default
    if value is None:
        raise ModelFolderError(f"config.json has no {key}")
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise ModelFolderError(f"config.json: {key} must be a positive integer, not {value!r}")
    return value


def _head_dim(config: Mapping[str, Any], architecture: str, hidden_size: int, num_heads: int) -> int:
    # Qwen3's head_dim is independent of hidden_size, so a quotient would be a guess.
    derived = None if architecture == "Qwen3ForCausalLM" else hidden_size // num_heads
    head_dim = _positive(config, "head_dim", derived)
    if head_dim % 2:
        raise UnsupportedModelError(f"head_dim ({head_dim}) is odd; rotary embeddings need pairs")
    return head_dim


def _sliding_window(config: Mapping[str, Any], family: _Family, num_layers: int) -> tuple[int | None, ...]:
    used = family.window == "all layers" or (family.window == "by layer" and config.get("use_sliding_window", False))
    if not used or config.get("sliding_window") is None:
        return (None,) * num_layers
    window = _positive(config, "sliding_window")
    if family.window == "all layers":
        return (window,) * num_layers
    layer_types = config.get("layer_types")
    if layer_types is None:
        first = int(config.get("max_window_layers", 28))
        return tuple(window if layer >= first else None for layer in range(num_layers))
    windows: dict[str, int | None] = {"sliding_attention": window, "full_attention": None}
    if len(layer_types) != num_layers or not set(layer_types) <= set(windows):
        raise UnsupportedModelError(
            f"layer_types must name {num_layers} layers, each one of {', '.join(windows)}; got {layer_types}"
        )
    return tuple(windows[name] for name in layer_types)


def _dtype(config: Mapping[str, Any]) -> str:
    name = str(config.get("dtype") or config.get("torch_dtype") or "float32").removeprefix("torch.")
    if name not in _DTYPES:
        raise UnsupportedModelError(f"dtype {name} is not supported; supported: {', '.join(_DTYPES)}")
    return name
