"""The total order of a row of logits: the larger logit first and, among equal logits, the lower id first.

Greedy choice, top_k, top_p, min_p and logprob alternatives are all prefixes of this order, so ties never depend on the
batch or the backend. Rows are seen as chunks of CHUNK logits: one fast pass takes each chunk's maximum, and
everything after it reads only the chunks that matter.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

CHUNK = 64
_BLOCK_LOGITS = 2**17


def chunked(logits: torch.Tensor) -> torch.Tensor:
    """[R, V] -> [R, N, CHUNK]; a view, or a copy padded with -inf where V is no multiple of CHUNK."""
    padding = -logits.shape[1] % CHUNK
    if padding:
        logits = F.pad(logits, (0, padding), value=-torch.inf)
    return logits.view(len(logits), logits.shape[1] // CHUNK, CHUNK)


def finite_maxima(chunks: torch.Tensor) -> torch.Tensor:
    """Chunk maxima [R, N] of `chunks` [R, N, CHUNK]; rows without a finite maximum are repaired in place first.

    A NaN counts as impossible, +inf as the largest float32, and a row in which nothing is possible gives its first id.
    """
    maxima = chunks.amax(-1)
    broken = ~maxima.amax(-1).isfinite()
    if bool(broken.any()):
        rows = torch.nan_to_num(
            chunks[broken], nan=-torch.inf, posinf=torch.finfo(torch.float32).max, neginf=-torch.inf
        )
        hopeless = rows.amax((1, 2)) == -torch.inf
        rows[hopeless, 0, 0] = 0.0
        chunks[broken] = rows
        maxima[broken] = rows.amax(-1)
    return maxima


def first(chunks: torch.Tensor, maxima: torch.Tensor) -> torch.Tensor:
    """The first id of each row, [R]; `chunks` is [R, N, CHUNK] and `maxima` [R, N] its chunk maxima."""
    chunk = maxima.argmax(-1)
    rows = torch.arange(len(chunks), device=chunks.device)
    return chunk * CHUNK + chunks[rows, chunk].argmax(-1)


def leading(
    chunks: torch.Tensor, maxima: torch.Tensor, rows: torch.Tensor, count: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The first `count` logits and ids of each of `rows` [r] in order: [r, count] each (fewer if a row is shorter).

    They are all in the first `count` chunks, ordered by (maximum, lower chunk first): the best token of each of
    those chunks precedes every token of a later chunk.
    """
    num_chunks = chunks.shape[1]
    size = max(1, _BLOCK_LOGITS // (min(count, num_chunks) * CHUNK))
    parts = [_leading(chunks, maxima, rows[i : i + size], count) for i in range(0, len(rows), size)]
    return torch.cat([logits for logits, _ in parts]), torch.cat([ids for _, ids in parts])


def _leading(
    chunks: torch.Tensor, maxima: torch.Tensor, rows: torch.Tensor, count: int
) -> tuple[torch.Tensor, torch.Tensor]:
    num_chunks = chunks.shape[1]
    index = torch.arange(num_chunks, device=chunks.device)
    chosen = order_key(maxima[rows], index).topk(min(count, num_chunks)).indices
    flat = (rows[:, None] * num_chunks + chosen).view(-1)
    logits = chunks.view(-1, CHUNK).index_select(0, flat).view(len(rows), -1)
    ids = (chosen[:, :, None] * CHUNK + torch.arange(CHUNK, device=chunks.device)).view(len(rows), -1)
    best = order_key(logits, ids).topk(min(count, logits.shape[1])).indices
    return logits.gather(1, best), ids.gather(1, best)


def order_key(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """An int64 for each (logit, id): larger means earlier in the order, and no two are equal. No NaN, ids < 2**32.

    The bits of a float32 sort like an integer once those of negative numbers are flipped; adding 0.0 makes -0.0 a zero.
    """
    bits = (logits + 0.0).view(torch.int32)
    bits = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return (bits.to(torch.int64) << 32) - ids
