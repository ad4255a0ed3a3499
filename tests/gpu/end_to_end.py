"""Tokens a second of whole models with random weights: this engine's GPU path, and transformers on the same device."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from weir.engine.gpu_batch import StepShape
from weir.engine.gpu_graphs import CudaGraphs, EagerGraphs
from weir.engine.gpu_memory import activation_bytes
from weir.engine.gpu_runner import GpuRunner
from weir.engine.plan import Chunk, StepPlan
from weir.engine.request import Choice, GenerateRequest, Request, SamplingParams
from weir.engine.runner import Runner
from weir.engine.sampler import Sampler
from weir.engine.sampling_state import SamplingState
from weir.models.decoder import Decoder
from weir.models.loader import dummy_weights
from weir.models.spec import ModelSpec
from weir_kernels.dispatch import Kernels
from weir_kernels.sampling import sample

Row = dict[str, Any]

_COMMON: dict[str, Any] = {
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_act": "silu",
    "rope_theta": 500000.0,
    "max_position_embeddings": 8192,
    "eos_token_id": 0,
    "bos_token_id": 0,
    "torch_dtype": "bfloat16",
}
MODELS: dict[str, dict[str, Any]] = {
    "Qwen3-0.6B shapes": _COMMON
    | {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": 151936,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True,
    },
    "Llama-3.1-8B shapes": _COMMON
    | {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 128256,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
    },
}


@dataclass(frozen=True, slots=True)
class Load:
    """`batch` prompts of `prompt` tokens, `output` tokens of each; block_size of the KV cache."""

    batch: int
    prompt: int
    output: int
    block_size: int = 16


def weir_row(name: str, config: dict[str, Any], load: Load, kernels: Kernels, device: torch.device, gbps: float) -> Row:
    """Decode of a full batch, each step launched before the one before is collected."""
    spec = ModelSpec.from_config(config)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    decoder = Decoder(spec, dummy_weights(spec, dtype, device), kernels)
    blocks = -(-(load.prompt + load.output) // load.block_size)
    kv = decoder.allocate_kv(load.batch * blocks, load.block_size)
    shape = StepShape(max(load.batch, load.prompt), load.batch, blocks, load.block_size)
    plain = Runner(decoder, kv, Sampler(spec.vocab_size, device), load.block_size, device)
    graphs = CudaGraphs() if device.type == "cuda" else EagerGraphs()
    runner = GpuRunner(decoder, kv, plain, sample, graphs, shape, device)
    runner.warm_up()
    activations = activation_bytes(decoder, kv, shape, device) if device.type == "cuda" else 0

    choices = [_choice(index, load, spec, blocks) for index in range(load.batch)]
    for choice in choices:
        _take(runner.collect(runner.launch(_plan([Chunk(choice, 0, load.prompt, True)], single=load.prompt == 1))))
    _synchronize(device)
    began = time.perf_counter()
    host_s = 0.0
    pending = None
    for step in range(load.output - 1):
        chunks = [Chunk(choice, load.prompt + step, 1, True) for choice in choices]
        before = time.perf_counter()
        launched = runner.launch(_plan(chunks, single=True))
        host_s += time.perf_counter() - before
        if pending is not None:
            _take(runner.collect(pending))
        pending = launched
    if pending is not None:
        _take(runner.collect(pending))
    elapsed = time.perf_counter() - began
    steps = load.output - 1
    kv_bytes = load.batch * (load.prompt + load.output / 2) * spec.kv_bytes_per_token(dtype.itemsize)
    weight_bytes = sum(t.numel() * t.element_size() for t in _streamed(decoder))
    return {
        "model": name,
        "engine": "weir",
        "batch": load.batch,
        "tokens/s": load.batch * steps / elapsed,
        "step ms": elapsed / steps * 1e3,
        "host ms a step": host_s / steps * 1e3,
        "of roof": (weight_bytes + kv_bytes) / (elapsed / steps) / 1e9 / gbps,
        "activations MiB": activations / 2**20,
    }


def transformers_rows(name: str, config: dict[str, Any], load: Load, device: torch.device) -> Iterator[Row]:
    """`generate` on a batch, then continuous batching, of the same shapes with random weights."""
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

    arguments = {k: v for k, v in config.items() if k not in ("architectures", "model_type", "torch_dtype")}
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(config["model_type"], **arguments), dtype=dtype)
    model.eval()
    prompts = torch.randint(1, config["vocab_size"], (load.batch, load.prompt), device=device)
    options = GenerationConfig(
        max_new_tokens=load.output, min_new_tokens=load.output, do_sample=False, eos_token_id=None, pad_token_id=0
    )

    def padded() -> None:
        model.generate(prompts, attention_mask=torch.ones_like(prompts), generation_config=options)

    def continuous() -> None:
        model.generate_batch(prompts.tolist(), generation_config=options)

    runs = {"transformers generate": padded}
    if device.type == "cuda":
        runs["transformers continuous batching"] = continuous
    for engine, run in runs.items():
        run()
        _synchronize(device)
        began = time.perf_counter()
        run()
        _synchronize(device)
        elapsed = time.perf_counter() - began
        yield {
            "model": name,
            "engine": engine,
            "batch": load.batch,
            "tokens/s": load.batch * load.output / elapsed,
            "step ms": elapsed / load.output * 1e3,
        }


def _choice(index: int, load: Load, spec: ModelSpec, blocks: int) -> Choice:
    prompt = tuple((index * 31 + 7 * i) % spec.vocab_size for i in range(load.prompt))
    params = SamplingParams(max_tokens=load.output, temperature=0.0, ignore_eos=True)
    request = Request(GenerateRequest(str(index), prompt, params))
    choice = Choice(request, 0, list(prompt), blocks=list(range(1 + index * blocks, 1 + (index + 1) * blocks)))
    choice.sampling = SamplingState(params, prompt, (), spec.vocab_size)
    return choice


def _plan(chunks: list[Chunk], single: bool) -> StepPlan:
    return StepPlan(tuple(chunks), len(chunks) if single else 0, (), (), 0)


def _take(tokens: Any) -> None:
    for choice, token_id in zip(tokens.choices, tokens.token_ids, strict=True):
        choice.tokens.append(token_id)
        choice.sampling.append(token_id)


def _streamed(decoder: Decoder) -> list[torch.Tensor]:
    """The weights that a decode step reads whole: all but the embedding table, of which it reads a few rows."""
    layers = [getattr(layer, name) for layer in decoder._layers for name in layer.__dataclass_fields__]
    return [tensor for tensor in (*layers, decoder._lm_head) if tensor is not None]


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
