"""The first computation of a model, before it serves: one whose numbers are none would answer, and look healthy."""

from __future__ import annotations

from typing import Any

import torch
from weir_kernels.ragged import RaggedBatch

from weir.models.cpu_decoder import CpuDecoder
from weir.models.decoder import Decoder
from weir.models.errors import WeightsError

# Within one block of any size there is.
_TOKENS = 16


@torch.inference_mode()
def require_finite_logits(decoder: Decoder | CpuDecoder, kv: Any, block_size: int) -> None:
    """Compute a short prompt of tokens from all over the vocabulary in block 1, which nobody holds yet.

    Raises WeightsError when a logit is NaN or infinite.
    """
    spec, device = decoder.spec, decoder.device
    count = min(_TOKENS, block_size, spec.max_position_embeddings)
    positions = torch.arange(count, device=device)
    logits = decoder.forward(
        RaggedBatch(
            token_ids=positions * (spec.vocab_size - 1) // max(1, count - 1),
            positions=positions,
            slot_mapping=block_size + positions,
            cu_seqlens=torch.tensor([0, count], dtype=torch.int32, device=device),
            seq_lens=torch.tensor([count], dtype=torch.int32, device=device),
            block_tables=torch.ones((1, 1), dtype=torch.int32, device=device),
            logit_rows=positions,
            num_decodes=0,
            max_query_len=count,
            max_seq_len=count,
        ),
        kv,
    )
    if not bool(logits.isfinite().all()):
        bad = int((~logits.isfinite()).sum())
        raise WeightsError(
            f"the model does not compute: {bad} of {logits.numel()} logits of a first prompt are not finite; "
            "its weights are damaged, or dtype is too narrow for it (float32 and bfloat16 hold larger values)"
        )
