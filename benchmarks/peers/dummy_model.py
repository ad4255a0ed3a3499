"""A model folder with random weights in the shape of Qwen3-0.6B: a second shape to compare on, without a download.

    python -m benchmarks.peers.dummy_model .cache/peers/models/qwen3-0.6b-random
    make bench-peers ARGS="--model .cache/peers/models/qwen3-0.6b-random"

The tokenizer is the demo model's: its ids are a part of the vocabulary, and the work is token ids anyway.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import torch
from transformers import Qwen3Config
from transformers.models.auto.modeling_auto import AutoModelForCausalLM


def write(folder: Path, tokenizer: Path) -> None:
    """Write config, weights (1.2 GB of bf16) and the tokenizer of another model."""
    config = Qwen3Config(
        vocab_size=151936,
        hidden_size=1024,
        intermediate_size=3072,
        num_hidden_layers=28,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=40960,
        rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tokenizer / name, folder / name)


def main() -> None:
    """Write the folder from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tokenizer", type=Path, default=Path("models/smollm2-135m-instruct"))
    args = parser.parse_args()
    write(args.folder, args.tokenizer)


if __name__ == "__main__":
    main()
