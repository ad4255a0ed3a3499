"""What the engine relies on beyond the numbers: memory, limits, and a message for a batch that breaks a rule."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from weir.models.build import build_decoder
from weir.models.cpu_decoder import CpuDecoder
from weir.models.decoder import Decoder
from weir_kernels import cpu
from weir_kernels.cpu import CpuKernelError, CpuModel, CpuModelShape
from weir_kernels.ragged import RaggedBatch

from tests.unit.kernels.cpu.feeding import Feeder
from tests.unit.kernels.cpu.models import fused, make_spec, make_weights, random_tokens
from tests.unit.models import tiny


def test_packing_empties_the_weights_so_that_no_second_copy_is_kept() -> None:
    spec = make_spec(qkv_bias=True, o_bias=True, qk_norm=True)
    weights = make_weights(spec)
    CpuDecoder(spec, weights, threads=1)
    assert weights == {}


def test_packed_weights_are_padded_to_whole_panels_and_steps_and_no_more() -> None:
    shape = CpuModelShape(1, 50, 6, 2, 16, 37, 101, 1e-5)
    matrices = [
        (160, 56),  # qkv: 6 + 2 * 2 heads of 16; 50 inputs are 7 steps of 8
        (64, 96),  # output: 50 outputs are 2 panels of 32
        (96, 56),  # gate and up: 3 panels of 16 + 16, for 37 each
        (64, 40),  # down
        (128, 56),  # lm_head
    ]
    norms = 3 * 256  # 50 float32, on whole cache lines
    assert CpuModel(shape, threads=1).weight_bytes == sum(2 * n * k for n, k in matrices) + norms


def test_a_kv_block_has_the_bytes_that_are_promised() -> None:
    spec = make_spec(head_dim=24)
    decoder = fused(spec, make_weights(spec))
    # 2 layers, K and V, 2 KV heads of 24 dimensions padded to 32, 2 bytes each.
    assert decoder.kv_bytes_per_block(48) == 48 * 2 * 2 * 2 * 32 * 2
    assert decoder.allocate_kv(5, 48).data.nbytes == 6 * decoder.kv_bytes_per_block(48)


@pytest.mark.parametrize("block_size", [0, 8, 24])
def test_a_block_size_that_is_no_multiple_of_16_is_refused(block_size: int) -> None:
    spec = make_spec()
    with pytest.raises(ValueError, match=f"multiple of 16 on this path, not {block_size}"):
        fused(spec, make_weights(spec)).allocate_kv(4, block_size)


def test_an_odd_head_dim_is_refused() -> None:
    with pytest.raises(ValueError, match=r"head_dim \(15\) must be even"):
        CpuModelShape(1, 50, 6, 2, 15, 37, 101, 1e-5)


def test_an_instruction_set_that_is_not_there_is_refused() -> None:
    with pytest.raises(CpuKernelError, match="no avx9"):
        CpuModel(CpuModelShape(1, 50, 6, 2, 16, 37, 101, 1e-5), threads=1, isa="avx9")


def int32(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"token_ids": torch.tensor([1, 2, 101])}, "a token id is outside the vocabulary"),
        ({"token_ids": torch.tensor([1, -1, 2])}, "a token id is outside the vocabulary"),
        ({"positions": torch.tensor([0, 1, 2048])}, "a position is outside the rope table"),
        ({"slot_mapping": torch.tensor([16, 17, 32])}, "a slot is outside the KV cache"),
        ({"cu_seqlens": int32(0, 2)}, "cu_seqlens does not span the tokens"),
        ({"seq_lens": int32(2)}, "seq_lens is smaller than the tokens of this batch"),
        ({"seq_lens": int32(40)}, "seq_lens is larger than the block table"),
        ({"block_tables": int32(2, 0).unsqueeze(0)}, "a block table names a block outside the KV cache"),
        ({"logit_rows": torch.tensor([3])}, "a logit row is outside the batch"),
        ({"token_ids": int32(1, 2, 3)}, "contiguous torch.int64 tensor, not torch.int32"),
        ({"seq_lens": torch.tensor([3])}, "contiguous torch.int32 tensor, not torch.int64"),
        ({"positions": torch.arange(6)[::2]}, "contiguous"),
    ],
)
def test_a_batch_that_would_touch_foreign_memory_is_refused(change: dict[str, torch.Tensor], message: str) -> None:
    spec = make_spec()
    feeder = Feeder(fused(spec, make_weights(spec)), [random_tokens(spec, 3)], 16)
    batch: RaggedBatch = dataclasses.replace(feeder.batch([(0, 0, 3)]), **change)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=message):
        feeder.decoder.forward(batch, feeder.kv)


def test_the_fused_step_is_for_bf16_on_a_cpu(tmp_path: Path) -> None:
    tiny.save(tiny.make(tiny.configs()["llama2"]), tmp_path)
    decoder = build_decoder(tmp_path, device="cpu", dtype="bfloat16", threads=1)
    assert isinstance(decoder, CpuDecoder)
    assert decoder.kernels == f"cpu-{cpu.available()}"
    assert isinstance(build_decoder(tmp_path, device="cpu", dtype="float32"), Decoder)
    assert isinstance(build_decoder(tmp_path, device="cpu", dtype="bfloat16", kernels="reference"), Decoder)


def test_one_openmp_runtime_is_loaded() -> None:
    # In a process of its own: other packages that tests import bring runtimes along.
    program = (
        "import torch; from weir_kernels.cpu.library import load_library; assert load_library();"
        "names = {line.split()[-1] for line in open('/proc/self/maps') if 'omp' in line};"
        "print(sum(n.rpartition('/')[2].startswith(('libgomp', 'libomp', 'libiomp')) for n in names))"
    )
    counted = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert counted.stdout.strip() == "1"
