"""The runner of a GPU, ready to serve, and what its steps need beside weights and KV cache."""

from __future__ import annotations

import gc
from typing import Any

import torch
from weir_kernels.sampling import sample

from weir.engine.gpu_batch import StepShape
from weir.engine.gpu_graphs import CudaGraphs, EagerGraphs
from weir.engine.gpu_memory import largest_step
from weir.engine.gpu_runner import GpuRunner
from weir.engine.runner import Runner
from weir.engine.sampler import Sampler
from weir.models.decoder import Decoder


def gpu_runner(decoder: Decoder, kv: Any, shape: StepShape, cuda_graphs: bool) -> GpuRunner:
    """A runner that has recorded and compiled everything it will run. kv: the cache, whose addresses graphs keep.

    Raises ValueError when the kernels cannot compute this model with this cache on this device.
    """
    device, vocab_size = decoder.device, decoder.spec.vocab_size
    plain = Runner(decoder, kv, Sampler(vocab_size, device), shape.block_size, device)
    graphs = CudaGraphs() if cuda_graphs and device.type == "cuda" else EagerGraphs()
    runner = GpuRunner(decoder, kv, plain, sample, graphs, shape, device)
    runner.warm_up()
    return runner


def step_bytes(decoder: Decoder, shape: StepShape, cuda_graphs: bool) -> int:
    """Measured: what a GPU's free memory loses to staging, graphs, compiled kernels and the largest step.

    All of it runs over a cache of one block, and is given back. Raises ValueError as `gpu_runner` does.
    """
    free = torch.cuda.mem_get_info(decoder.device)[0]
    kv = decoder.allocate_kv(1, shape.block_size)
    runner = gpu_runner(decoder, kv, shape, cuda_graphs)
    decoder.forward(largest_step(shape, decoder.device), kv)
    torch.cuda.synchronize(decoder.device)
    taken = free - torch.cuda.mem_get_info(decoder.device)[0]
    del runner, kv
    gc.collect()
    torch.cuda.empty_cache()
    return max(0, taken)
