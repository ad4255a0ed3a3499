"""The decoder as one fused call a step: bf16 models on CPUs with AVX-512 or AVX2."""

from __future__ import annotations

import torch
from weir_kernels.cpu import CpuKvCache, CpuModel, CpuModelShape, PhaseClock, compute_threads
from weir_kernels.ragged import RaggedBatch

from weir.models.loader import Report, Weights, no_report
from weir.models.rope_table import rope_table
from weir.models.spec import ModelSpec


class CpuDecoder:
    """What `Decoder` does, computed by `weir_kernels.cpu`. Logits of a row are the same bits in every batch.

    The residual stream, norms, softmax and all sums are float32; weights, KV cache and the inputs of every product
    are bf16.
    """

    def __init__(
        self,
        spec: ModelSpec,
        weights: Weights,
        threads: int | None = None,
        isa: str | None = None,
        report: Report = no_report,
    ) -> None:
        """Pack the weights, emptying `weights` on the way so that no second copy is kept.

        threads: default, what the container may use. isa: default, the best this machine has. Raises CpuKernelError.
        """
        self.spec = spec
        self.dtype = torch.bfloat16
        self.device = torch.device("cpu")
        self._model = CpuModel(_shape(spec), compute_threads() if threads is None else threads, isa)
        self.kernels = f"cpu-{self._model.isa}"
        # torch's own operations between steps use the same OpenMP pool; teams of one size keep its threads alive.
        torch.set_num_threads(self._model.threads)
        _pack(self._model, spec, weights, report)

    def kv_bytes_per_block(self, block_size: int) -> int:
        """Bytes of one KV block of block_size tokens, all layers; the head is padded to a multiple of 16."""
        return self._model.kv_bytes_per_block(block_size)

    def allocate_kv(self, num_blocks: int, block_size: int) -> CpuKvCache:
        """A bf16 cache of num_blocks usable blocks, ids 1..num_blocks. block_size must be a multiple of 16."""
        return self._model.allocate_kv(num_blocks, block_size)

    def copy_blocks(self, kv: CpuKvCache, source: list[int], target: list[int]) -> None:
        """Copy whole KV blocks, source[i] to target[i]."""
        kv.copy_blocks(source, target)

    def forward(self, batch: RaggedBatch, kv: CpuKvCache) -> torch.Tensor:
        """Write the batch's K and V into the cache and return logits [R, V] float32 for batch.logit_rows.

        The tensor's memory is reused by the next call.
        """
        return self._model.logits(batch, kv)

    def greedy(self, batch: RaggedBatch, kv: CpuKvCache, clock: PhaseClock | None = None) -> torch.Tensor:
        """Like `forward`, but return only the id of each row's largest logit, [R] int64; the lowest id on ties.

        clock: `weir_kernels.cpu.phase_clock()`, to add the step's seconds by phase to.
        """
        return self._model.greedy(batch, kv, clock)


def _shape(spec: ModelSpec) -> CpuModelShape:
    return CpuModelShape(
        num_layers=spec.num_layers,
        hidden_size=spec.hidden_size,
        num_heads=spec.num_heads,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        intermediate_size=spec.intermediate_size,
        vocab_size=spec.vocab_size,
        rms_norm_eps=spec.rms_norm_eps,
        qkv_bias=spec.qkv_bias,
        output_bias=spec.o_bias,
        qk_norm=spec.qk_norm,
        sliding_window=spec.sliding_window,
    )


def _pack(model: CpuModel, spec: ModelSpec, weights: Weights, report: Report) -> None:
    total = model.weight_bytes
    for layer in range(spec.num_layers):
        report("packing weights", total * layer // spec.num_layers, total)
        prefix = f"layers.{layer}."
        model.pack("qkv", layer, weights.pop(prefix + "qkv"))
        model.pack("output", layer, weights.pop(prefix + "o"))
        model.pack_gate_up(layer, weights.pop(prefix + "gate_up"))
        model.pack("down", layer, weights.pop(prefix + "down"))
        for name, vector in (
            ("attn_norm", "attention_norm"),
            ("mlp_norm", "mlp_norm"),
            ("qkv_bias", "qkv_bias"),
            ("o_bias", "output_bias"),
            ("q_norm", "q_norm"),
            ("k_norm", "k_norm"),
        ):
            if (values := weights.pop(prefix + name, None)) is not None:
                model.set_vector(vector, layer, values)
    model.set_vector("final_norm", 0, weights.pop("final_norm"))
    embedding, lm_head = weights.pop("embed"), weights.pop("lm_head")
    model.pack("lm_head", 0, lm_head)
    cos, sin = rope_table(spec.rope, spec.head_dim, spec.max_position_embeddings, torch.device("cpu"))
    model.set_tables(cos, sin, None if lm_head is embedding else embedding)
