"""The operations whose reference is slow, in batched torch: what serves on a CPU without a compiler.

Decodes are gathered in groups of similar length and the query heads that share a KV head become query rows, so that a
group is one SDPA call that reads K and V once. Chunks are one SDPA call each. Same contract as `reference`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from weir_kernels.ragged import RaggedBatch
from weir_kernels.reference import norm_rope


def write_kv(
    k: torch.Tensor, v: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, slot_mapping: torch.Tensor
) -> None:
    """See `reference.write_kv`."""
    kept = slot_mapping >= 0
    if not bool(kept.all()):
        k, v, slot_mapping = k[kept], v[kept], slot_mapping[kept]
    for cache, new in ((k_cache, k), (v_cache, v)):
        # view, not flatten: a cache that would have to be copied must fail, not lose the write.
        cache.view(-1, *cache.shape[2:]).index_copy_(0, slot_mapping, new.to(cache.dtype))


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
    """See `reference.norm_rope_write_kv`."""
    q, k = norm_rope(q, k, q_weight, k_weight, eps, cos, sin, positions)
    write_kv(k, v, k_cache, v_cache, slot_mapping)
    return q


@dataclass(frozen=True, slots=True)
class _DecodeGroup:
    """Decodes of similar length, gathered into [N, span] slots.

    rows: [N] tokens, blocks: [N * span / block_size], visible: [N, 1, 1, span] slots that the row attends to,
    hidden: the others, as indices into the N * span gathered slots.
    """

    rows: torch.Tensor
    blocks: torch.Tensor
    visible: torch.Tensor
    hidden: torch.Tensor


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Tokens `rows` of one sequence and the `kv_len` slots that they may see, at the start of `blocks`.

    visible: [tokens, kv_len], or None when the chunk is the whole sequence and plain causal masking is right.
    """

    rows: slice
    blocks: torch.Tensor
    kv_len: int
    visible: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class _Plan:
    groups: tuple[_DecodeGroup, ...]
    chunks: tuple[_Chunk, ...]


class PagedAttention:
    """`reference.paged_attention`, planned once a batch: every layer of a step sees the same batch object."""

    def __init__(self) -> None:
        self._batch: RaggedBatch | None = None
        self._plans: dict[tuple[int, int | None], _Plan] = {}

    def __call__(
        self,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        batch: RaggedBatch,
        scale: float,
        sliding_window: int | None = None,
    ) -> torch.Tensor:
        """q: [T, Hq, D], caches: [num_blocks, block_size, Hkv, D] -> [T, Hq, D]."""
        plan = self._plan(batch, k_cache.shape[1], sliding_window)
        out = torch.zeros(q.shape, dtype=q.dtype, device=q.device)
        for group in plan.groups:
            out[group.rows] = _decode(q[group.rows], k_cache, v_cache, group, scale)
        for chunk in plan.chunks:
            out[chunk.rows] = _prefill(q[chunk.rows], k_cache, v_cache, chunk, scale)
        return out

    def _plan(self, batch: RaggedBatch, block_size: int, sliding_window: int | None) -> _Plan:
        if batch is not self._batch:
            self._batch, self._plans = batch, {}
        key = (block_size, sliding_window)
        if key not in self._plans:
            self._plans[key] = _Plan(
                tuple(_decode_groups(batch, block_size, sliding_window)),
                tuple(_chunks(batch, block_size, sliding_window)),
            )
        return self._plans[key]


def _decode_groups(batch: RaggedBatch, block_size: int, sliding_window: int | None) -> Iterator[_DecodeGroup]:
    lengths = batch.seq_lens[: batch.num_decodes].tolist()
    spans = [min(length, sliding_window or length) for length in lengths]
    order = sorted((s for s, span in enumerate(spans) if span > 0), key=spans.__getitem__)
    start = 0
    for end in range(1, len(order) + 1):
        # At most a quarter of a group, and the rest of a block, is padding.
        if end == len(order) or spans[order[end]] > 1.25 * spans[order[start]] + block_size:
            yield _decode_group(batch, torch.tensor(order[start:end]), block_size, sliding_window)
            start = end


def _decode_group(
    batch: RaggedBatch, sequences: torch.Tensor, block_size: int, sliding_window: int | None
) -> _DecodeGroup:
    lengths = batch.seq_lens[sequences].long().unsqueeze(1)
    first_visible = (lengths - sliding_window).clamp(min=0) if sliding_window else torch.zeros_like(lengths)
    first_block = first_visible // block_size
    num_blocks = int(((lengths - 1) // block_size - first_block).max()) + 1
    columns = (first_block + torch.arange(num_blocks)).clamp(max=batch.block_tables.shape[1] - 1)
    blocks = batch.block_tables[sequences].long().gather(1, columns)
    positions = first_block * block_size + torch.arange(num_blocks * block_size)
    visible = (positions >= first_visible) & (positions < lengths)
    hidden = (~visible).flatten().nonzero().squeeze(1)
    return _DecodeGroup(sequences, blocks.flatten(), visible[:, None, None, :], hidden)


def _chunks(batch: RaggedBatch, block_size: int, sliding_window: int | None) -> Iterator[_Chunk]:
    bounds, lengths = batch.cu_seqlens.tolist(), batch.seq_lens.tolist()
    for s in range(batch.num_decodes, len(lengths)):
        rows, length = slice(bounds[s], bounds[s + 1]), lengths[s]
        first_query = length - (rows.stop - rows.start)
        if length == 0 or first_query == length:
            continue
        first_visible = max(0, first_query + 1 - sliding_window) if sliding_window else 0
        first_block = first_visible // block_size
        blocks = batch.block_tables[s, first_block : -(-length // block_size)].long()
        if first_query == 0 and (sliding_window is None or sliding_window >= length):
            yield _Chunk(rows, blocks, length, None)
            continue
        queries = torch.arange(first_query, length).unsqueeze(1)
        keys = torch.arange(first_block * block_size, length)
        visible = keys <= queries
        if sliding_window is not None:
            visible &= keys > queries - sliding_window
        yield _Chunk(rows, blocks, len(keys), visible)


def _gather(cache: torch.Tensor, blocks: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Copy whole blocks: [len(blocks) * block_size, Hkv, D]. Flat rows make this a run of large memory copies."""
    return cache.flatten(1).index_select(0, blocks).view(-1, *cache.shape[2:]).to(dtype)


def _decode(
    q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, group: _DecodeGroup, scale: float
) -> torch.Tensor:
    count, num_heads, head_dim = q.shape
    num_kv_heads = k_cache.shape[2]

    def load(cache: torch.Tensor) -> torch.Tensor:
        # Masking the scores is not enough: 0 * NaN from a slot of somebody else is NaN.
        slots = _gather(cache, group.blocks, q.dtype).index_fill_(0, group.hidden, 0)
        return slots.view(count, -1, num_kv_heads, head_dim).transpose(1, 2)

    query = q.view(count, num_kv_heads, num_heads // num_kv_heads, head_dim)
    out = F.scaled_dot_product_attention(query, load(k_cache), load(v_cache), attn_mask=group.visible, scale=scale)
    return out.reshape(q.shape)


def _prefill(
    q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, chunk: _Chunk, scale: float
) -> torch.Tensor:
    keys, values = (
        _gather(cache, chunk.blocks, q.dtype)[: chunk.kv_len].transpose(0, 1).unsqueeze(0)
        for cache in (k_cache, v_cache)
    )
    out = F.scaled_dot_product_attention(
        q.transpose(0, 1).unsqueeze(0),
        keys,
        values,
        attn_mask=chunk.visible,
        is_causal=chunk.visible is None,
        scale=scale,
        enable_gqa=q.shape[1] != k_cache.shape[2],
    )
    return out.squeeze(0).transpose(0, 1)
