"""One decoder for the dense family: Llama, SmolLM2, Mistral, Qwen2 and Qwen3 differ in data, not in code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from weir_kernels.dispatch import Kernels
from weir_kernels.ragged import RaggedBatch

from weir.models.kv_cache import KvCache
from weir.models.rope_table import rope_table
from weir.models.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class _Layer:
    """The weights of one block; projections are [out_features, in_features]. None: the family has no such tensor."""

    attn_norm: torch.Tensor
    qkv: torch.Tensor
    qkv_bias: torch.Tensor | None
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    o: torch.Tensor
    o_bias: torch.Tensor | None
    mlp_norm: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor

    @classmethod
    def of(cls, weights: Mapping[str, torch.Tensor], layer: int) -> _Layer:
        """The tensors named `layers.<layer>.*`."""
        return cls(**{name: weights.get(f"layers.{layer}.{name}") for name in cls.__dataclass_fields__})  # type: ignore[arg-type]


class Decoder:
    """Computes the ragged batch of a step with the kernels it was given.

    weights: as `weir.models.loader` names them, all of one dtype on one device. kv_dtype: of the KV cache; default,
    the weights' own.
    """

    def __init__(
        self,
        spec: ModelSpec,
        weights: Mapping[str, torch.Tensor],
        ops: Kernels,
        kv_dtype: torch.dtype | None = None,
    ) -> None:
        self.spec = spec
        self.dtype = weights["embed"].dtype
        self.kv_dtype = kv_dtype or self.dtype
        self.device = weights["embed"].device
        self.kernels = ops.name
        self._ops = ops
        self._embed, self._lm_head, self._final_norm = weights["embed"], weights["lm_head"], weights["final_norm"]
        self._layers = tuple(_Layer.of(weights, i) for i in range(spec.num_layers))
        self._cos, self._sin = rope_table(spec.rope, spec.head_dim, spec.max_position_embeddings, self.device)

    def kv_bytes_per_block(self, block_size: int) -> int:
        """Bytes of one KV block of block_size tokens, all layers."""
        return block_size * self.spec.kv_bytes_per_token(self.kv_dtype.itemsize)

    def allocate_kv(self, num_blocks: int, block_size: int) -> KvCache:
        """A cache of num_blocks usable blocks, ids 1..num_blocks."""
        return KvCache.allocate(self.spec, num_blocks, block_size, self.kv_dtype, self.device)

    @torch.inference_mode()
    def copy_blocks(self, kv: KvCache, source: list[int], target: list[int]) -> None:
        """Copy whole KV blocks, source[i] to target[i]."""
        kv.copy_blocks(source, target)

    @torch.inference_mode()
    def forward(self, batch: RaggedBatch, kv: KvCache) -> torch.Tensor:
        """Write the batch's K and V into the cache and return logits [R, V] float32 for batch.logit_rows."""
        hidden = self.hidden_states(batch, kv)
        return F.linear(hidden, self._lm_head).float()

    @torch.inference_mode()
    def hidden_states(self, batch: RaggedBatch, kv: KvCache) -> torch.Tensor:
        """The normed last hidden state [R, H] of batch.logit_rows, in the model's dtype."""
        eps, ops = self.spec.rms_norm_eps, self._ops
        residual = F.embedding(batch.token_ids, self._embed)
        x = ops.rms_norm(residual, self._layers[0].attn_norm, eps)
        for index, layer in enumerate(self._layers):
            x = self._attention(x, layer, index, batch, kv)
            x, residual = ops.add_rms_norm(x, residual, layer.mlp_norm, eps)
            x = F.linear(ops.silu_mul(F.linear(x, layer.gate_up)), layer.down)
            if index + 1 < len(self._layers):
                x, residual = ops.add_rms_norm(x, residual, self._layers[index + 1].attn_norm, eps)
        rows = batch.logit_rows
        return ops.add_rms_norm(x[rows], residual[rows], self._final_norm, eps)[0]

    def _attention(self, x: torch.Tensor, layer: _Layer, index: int, batch: RaggedBatch, kv: KvCache) -> torch.Tensor:
        spec, ops = self.spec, self._ops
        heads = F.linear(x, layer.qkv, layer.qkv_bias).view(len(x), -1, spec.head_dim)
        q, k, v = heads.split_with_sizes((spec.num_heads, spec.num_kv_heads, spec.num_kv_heads), dim=1)
        keys, values = kv.keys[index], kv.values[index]
        q = ops.norm_rope_write_kv(
            q,
            k,
            v,
            layer.q_norm,
            layer.k_norm,
            spec.rms_norm_eps,
            self._cos,
            self._sin,
            batch.positions,
            keys,
            values,
            batch.slot_mapping,
        )
        out = ops.paged_attention(q, keys, values, batch, spec.head_dim**-0.5, spec.sliding_window[index])
        return F.linear(out.flatten(1), layer.o, layer.o_bias)
