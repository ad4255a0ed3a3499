"""The ragged batch: all tokens of all sequences concatenated in one dimension, no padding token anywhere."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class RaggedBatch:
    """T tokens of S sequences, decodes (one token each) first; R rows want logits.

    Isolation between sequences is by `cu_seqlens` and `block_tables`: a token at position p of sequence s attends
    to positions 0..p of s only, the block-diagonal causal mask made implicit.

    token_ids:    [T] int64
    positions:    [T] int64, position in the sequence
    slot_mapping: [T] int64, block * block_size + offset where the token's K and V go; -1 = do not write
    cu_seqlens:   [S + 1] int32, token range of sequence s is cu_seqlens[s]..cu_seqlens[s + 1]
    seq_lens:     [S] int32, KV length of the sequence once this batch is written
    block_tables: [S, max_blocks] int32, rows padded with 0, the null block
    logit_rows:   [R] int64, indices into T of the tokens whose logits are wanted
    num_decodes:  the first num_decodes sequences have one token each
    max_query_len, max_seq_len: host copies of the largest chunk and KV length
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    slot_mapping: torch.Tensor
    cu_seqlens: torch.Tensor
    seq_lens: torch.Tensor
    block_tables: torch.Tensor
    logit_rows: torch.Tensor
    num_decodes: int
    max_query_len: int
    max_seq_len: int
