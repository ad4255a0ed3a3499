"""Every operation of the decoder in plain torch, float32 inside, one sequence at a time: the oracle of all tests.

Written to be obviously right, not fast; `torch_ops` is the same in batched torch, `cpu` and the Triton files are fast.
All functions accept strided views whose last dimension is contiguous and return tensors of the dtype of their input.
"""

from __future__ import annotations

import torch

from weir_kernels.ragged import RaggedBatch

FLOAT8 = torch.float8_e4m3fn


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension. x: [..., H], weight: [H] -> [..., H]."""
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
    return (wide * scale * weight.float()).to(x.dtype)


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Add x to the residual stream and normalise. x, residual: [T, H] -> (normed, new_residual), both [T, H].

    The norm reads the new residual after it was rounded to its dtype, so that both results agree.
    """
    new_residual = (x.float() + residual.float()).to(x.dtype)
    return rms_norm(new_residual, weight, eps), new_residual


def rope(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, positions: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotate dimension pairs (i, i + D/2) of each head by its position's angle (the NeoX pairing).

    q: [T, Hq, D], k: [T, Hkv, D], cos, sin: [max_positions, D/2] float32, positions: [T] int64
    -> new (q, k) of the same shapes.
    """
    c, s = cos[positions].unsqueeze(1), sin[positions].unsqueeze(1)

    def rotate(x: torch.Tensor) -> torch.Tensor:
        first, second = x.float().chunk(2, dim=-1)
        return torch.cat((first * c - second * s, second * c + first * s), dim=-1).to(x.dtype)

    return rotate(q), rotate(k)


def write_kv(
    k: torch.Tensor, v: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, slot_mapping: torch.Tensor
) -> None:
    """Store each token's K and V in its slot, in place; slot -1 stores nothing.

    k, v: [T, Hkv, D], caches: [num_blocks, block_size, Hkv, D], slot_mapping: [T] int64 = block * block_size + offset.
    What a float8_e4m3fn cache cannot hold becomes its largest value.
    """
    block_size = k_cache.shape[1]
    k, v = _to_cache(k, k_cache.dtype), _to_cache(v, v_cache.dtype)
    for token, slot in enumerate(slot_mapping.tolist()):
        if slot >= 0:
            k_cache[slot // block_size, slot % block_size] = k[token]
            v_cache[slot // block_size, slot % block_size] = v[token]


def _to_cache(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if dtype == FLOAT8:
        largest = torch.finfo(FLOAT8).max
        x = x.float().clamp(-largest, largest)
    return x.to(dtype)


def norm_rope_write_kv(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    q_weight: torch.Tensor | None,
    k_weight: torch.Tensor | None,
    eps: float,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> torch.Tensor:
    """From the projections to attention: norm of each Q and K head where weights [D] are given, rotation, cache write.

    Shapes as in `rope` and `write_kv`. Returns the new q.
    """
    q, k = norm_rope(q, k, q_weight, k_weight, eps, cos, sin, positions)
    write_kv(k, v, k_cache, v_cache, slot_mapping)
    return q


def norm_rope(
    q: torch.Tensor,
    k: torch.Tensor,
    q_weight: torch.Tensor | None,
    k_weight: torch.Tensor | None,
    eps: float,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The part of `norm_rope_write_kv` before the write: new (q, k)."""
    if q_weight is not None and k_weight is not None:
        q, k = rms_norm(q, q_weight, eps), rms_norm(k, k_weight, eps)
    return rope(q, k, cos, sin, positions)


def paged_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    batch: RaggedBatch,
    scale: float,
    sliding_window: int | None = None,
) -> torch.Tensor:
    """Causal grouped-query attention of every token over the paged KV cache of its own sequence.

    q: [T, Hq, D], caches: [num_blocks, block_size, Hkv, D] with this batch's tokens already written -> [T, Hq, D].
    The last token of a sequence sits at position seq_len - 1. Query p sees keys max(0, p - sliding_window + 1)..p; the
    window counts the token itself. Query head h reads KV head h // (Hq / Hkv). Slots that the sequence does not own are
    never read, whatever they hold. A sequence with no KV (seq_len 0) gets zeros.
    """
    out = torch.zeros_like(q)
    bounds, lengths = batch.cu_seqlens.tolist(), batch.seq_lens.tolist()
    for s, kv_len in enumerate(lengths):
        rows = slice(bounds[s], bounds[s + 1])
        if kv_len > 0 and bounds[s] < bounds[s + 1]:
            keys, values = (_gather(cache, batch.block_tables[s], kv_len) for cache in (k_cache, v_cache))
            out[rows] = _causal_attention(q[rows].float(), keys, values, scale, sliding_window).to(q.dtype)
    return out


def _gather(cache: torch.Tensor, block_table: torch.Tensor, kv_len: int) -> torch.Tensor:
    """The first kv_len tokens of one sequence: [kv_len, Hkv, D] float32."""
    positions = torch.arange(kv_len, device=cache.device)
    block_size = cache.shape[1]
    return cache[block_table[positions // block_size].long(), positions % block_size].float()


def _causal_attention(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float, sliding_window: int | None
) -> torch.Tensor:
    num_queries, num_heads, _ = q.shape
    kv_len, num_kv_heads, _ = keys.shape
    keys = keys.repeat_interleave(num_heads // num_kv_heads, dim=1)
    values = values.repeat_interleave(num_heads // num_kv_heads, dim=1)
    scores = torch.einsum("qhd,khd->hqk", q, keys) * scale
    key_positions = torch.arange(kv_len, device=q.device)
    query_positions = torch.arange(kv_len - num_queries, kv_len, device=q.device).unsqueeze(1)
    visible = key_positions <= query_positions
    if sliding_window is not None:
        visible &= key_positions > query_positions - sliding_window
    weights = scores.masked_fill(~visible, float("-inf")).softmax(dim=-1)
    return torch.einsum("hqk,khd->qhd", weights, values)


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up. gate_up: [T, 2 * I], the gate in the first half -> [T, I]."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    return (torch.nn.functional.silu(gate) * up).to(gate_up.dtype)
