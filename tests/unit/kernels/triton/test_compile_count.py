"""Values that change from step to step compile nothing new."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from weir_kernels.activation import gated_launch
from weir_kernels.aot.offline import compiling_for
from weir_kernels.attention import plan_launches
from weir_kernels.launch import Launch
from weir_kernels.norm import rms_norm_launch
from weir_kernels.qkv import norm_rope_write_kv_launch
from weir_kernels.ragged import RaggedBatch
from weir_kernels.sampling import penalise_launch, sample_launch
from weir_kernels.tuning import Chip

ARCH = "sm_90"
BATCH_SIZES = (1, 3, 16, 17, 48)


def shifted(length: int, dtype: torch.dtype, shift: int) -> torch.Tensor:
    """A slice of a staging buffer: its address is a multiple of 16 bytes only by luck."""
    return torch.zeros(length + shift, dtype=dtype)[shift:]


def launches_of_a_step(rows: int) -> Iterator[Launch]:
    """Everything a layer and a sampler launch for `rows` decodes and one chunk of 5 * rows tokens."""
    tokens, sequences, shift = 6 * rows, rows + 1, rows % 4
    batch = RaggedBatch(
        token_ids=shifted(tokens, torch.int64, shift),
        positions=shifted(tokens, torch.int64, shift),
        slot_mapping=shifted(tokens, torch.int64, shift),
        cu_seqlens=shifted(sequences + 1, torch.int32, shift),
        seq_lens=shifted(sequences, torch.int32, shift),
        block_tables=shifted(sequences * rows * 40, torch.int32, shift).view(sequences, rows * 40),
        logit_rows=shifted(sequences, torch.int64, shift),
        num_decodes=rows,
        max_query_len=5 * rows,
        max_seq_len=640 * rows,
    )
    half = torch.bfloat16
    qkv = torch.zeros(tokens, 12, 64, dtype=half)
    q, k, v = qkv.split_with_sizes((8, 2, 2), dim=1)
    cache = torch.zeros(4, 16, 2, 64, dtype=half)
    hidden, weight = torch.zeros(tokens, 512, dtype=half), torch.zeros(512, dtype=half)
    angles, norm = torch.zeros(64, 32), torch.zeros(64, dtype=half)
    yield rms_norm_launch(hidden, hidden, weight, 1e-5)
    yield rms_norm_launch(hidden, hidden, weight, 1e-5, hidden, hidden)
    yield gated_launch(hidden, torch.zeros(tokens, 1024, dtype=half), gelu=False)
    yield norm_rope_write_kv_launch(
        q, q, k, v, norm, norm, 1e-6, angles, angles, batch.positions, cache, cache, batch.slot_mapping, 1.0, 1.0
    )
    out = torch.zeros(tokens, 8, 64, dtype=half)
    yield from plan_launches(
        out,
        q,
        cache,
        cache,
        batch,
        0.125,
        100 * rows,
        soft_cap=None,
        sinks=None,
        k_scale=1.0,
        v_scale=1.0,
        split_tokens=None,
        chip=Chip(ARCH, 132),
    )
    logits, values = torch.zeros(rows, 1024), shifted(rows, torch.float32, shift)
    top_k, u = shifted(rows, torch.int32, shift), shifted(rows, torch.float64, shift)
    yield sample_launch(shifted(rows, torch.int64, shift), logits, values, top_k, values, values, u)
    starts, seen = shifted(rows + 1, torch.int32, shift), shifted(3 * rows, torch.int64, shift)
    yield penalise_launch(logits, starts, seen, shifted(3 * rows, torch.float32, shift), values, values, values)


def compiled_variants() -> dict[str, int]:
    """How many variants of each kernel this process holds for the chip, after all that a step launches is compiled."""
    kernels = {launch.kernel.fn.__name__: launch.kernel for launch in launches_of_a_step(1)}
    return {name: len(kernel.device_caches[ARCH][0]) for name, kernel in kernels.items()}


@pytest.mark.timeout(600)
def test_batch_sizes_lengths_and_buffer_offsets_share_one_variant_of_every_kernel() -> None:
    with compiling_for(ARCH):
        for launch in launches_of_a_step(BATCH_SIZES[0]):
            launch.compile()
        first = compiled_variants()
        assert set(first) >= {"decode_kernel", "merge_kernel", "prefill_kernel", "sample_kernel"}
        for rows in BATCH_SIZES[1:]:
            for launch in launches_of_a_step(rows):
                launch.compile()
        assert compiled_variants() == first
