"""A Hugging Face folder as a bf16 GGUF file: the same bits of every matrix, without a vocabulary.

    python -m benchmarks.peers.gguf_model models/smollm2-135m-instruct out.gguf

The benchmarks send token ids, so llama.cpp needs no tokenizer. Architectures: Llama and Qwen3 without RoPE scaling.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import torch
from safetensors import safe_open

_ARCHITECTURES = {"LlamaForCausalLM": gguf.MODEL_ARCH.LLAMA, "Qwen3ForCausalLM": gguf.MODEL_ARCH.QWEN3}


def convert(folder: Path, path: Path) -> None:
    """Write `path`. Raises ValueError for a model that this page does not know to convert."""
    config = json.loads((folder / "config.json").read_text())
    name = config["architectures"][0]
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if name not in _ARCHITECTURES or rope.get("rope_type", "default") != "default":
        raise ValueError(f"no GGUF conversion for {name} with RoPE type {rope.get('rope_type', 'default')}")
    architecture = _ARCHITECTURES[name]
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[architecture])
    _add_config(writer, config, rope)
    names = gguf.get_tensor_name_map(architecture, config["num_hidden_layers"])
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, "pt") as tensors:
            for key in tensors.keys():  # noqa: SIM118  # not a mapping
                target = names.get_name(key, try_suffixes=(".weight",))
                if target is None:
                    raise ValueError(f"{file}: {key} has no name in GGUF")
                tensor = tensors.get_tensor(key)
                if architecture == gguf.MODEL_ARCH.LLAMA:
                    tensor = _interleave_rotary_pairs(key, tensor, config)
                _add_tensor(writer, target, tensor)
    path.parent.mkdir(parents=True, exist_ok=True)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_config(writer: gguf.GGUFWriter, config: Mapping[str, Any], rope: Mapping[str, Any]) -> None:
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config.get("num_key_value_heads", heads))
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(float(rope.get("rope_theta") or config.get("rope_theta") or 10000.0))
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("none")


def _interleave_rotary_pairs(key: str, tensor: torch.Tensor, config: Mapping[str, Any]) -> torch.Tensor:
    """llama.cpp rotates neighbours of a Llama head, Hugging Face its two halves: order the rows of Q and K so."""
    heads = {
        "q_proj": config["num_attention_heads"],
        "k_proj": config.get("num_key_value_heads", config["num_attention_heads"]),
    }.get(key.split(".")[-2])
    if heads is None:
        return tensor
    return tensor.view(heads, 2, -1, *tensor.shape[1:]).transpose(1, 2).reshape(tensor.shape)


def _add_tensor(writer: gguf.GGUFWriter, name: str, tensor: torch.Tensor) -> None:
    if tensor.ndim == 1:
        writer.add_tensor(name, tensor.float().numpy())
    else:
        bits = tensor.bfloat16().contiguous().view(torch.uint8).numpy()
        writer.add_tensor(name, bits, raw_dtype=gguf.GGMLQuantizationType.BF16)


def main() -> None:
    """Convert from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    convert(args.folder, args.out)


if __name__ == "__main__":
    main()
