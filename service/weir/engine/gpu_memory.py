"""How much memory the largest step takes beside weights and KV cache, so that the cache can have the rest."""

from __future__ import annotations

from typing import Any

import torch
from weir_kernels.ragged import RaggedBatch

from weir.engine.gpu_batch import StepShape
from weir.engine.runner import ModelExecutor


def largest_step(shape: StepShape, device: torch.device) -> RaggedBatch:
    """One chunk of max_tokens tokens that writes nothing and wants logits for max_rows of them.

    Its keys are those of the null block, so a cache of any size serves.
    """
    tokens, rows = shape.max_tokens, min(shape.max_rows, shape.max_tokens)
    blocks = -(-tokens // shape.block_size)
    return RaggedBatch(
        token_ids=torch.zeros(tokens, dtype=torch.int64, device=device),
        positions=torch.zeros(tokens, dtype=torch.int64, device=device),
        slot_mapping=torch.full((tokens,), -1, dtype=torch.int64, device=device),
        cu_seqlens=torch.tensor([0, tokens], dtype=torch.int32, device=device),
        seq_lens=torch.tensor([tokens], dtype=torch.int32, device=device),
        block_tables=torch.zeros((1, blocks), dtype=torch.int32, device=device),
        logit_rows=torch.arange(rows, device=device),
        num_decodes=0,
        max_query_len=tokens,
        max_seq_len=tokens,
    )


@torch.inference_mode()
def activation_bytes(decoder: ModelExecutor, kv: Any, shape: StepShape, device: torch.device) -> int:
    """Measured peak of memory that the largest step allocates on a GPU. kv: a cache of any size, as for the decoder."""
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    decoder.forward(largest_step(shape, device), kv)
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before
