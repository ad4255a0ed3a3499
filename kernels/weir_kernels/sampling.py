"""Sampling one token a row: temperature, top_k, top_p, min_p and an inverse-CDF draw, one program a row, no sort.

The file holds device code, whose parameters Triton types at launch, and the typed functions around it.
"""

# ruff: noqa: N803
# mypy: disable-error-code="untyped-decorator,no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from weir_kernels.checks import require
from weir_kernels.launch import Launch
from weir_kernels.sampling_search import find_end, load_logits, order_key

GREEDY_BELOW = tl.constexpr(1e-5)
# exp of less than this is 0 in float32: tokens further below the maximum, in units of temperature, weigh nothing.
WEIGHTLESS = tl.constexpr(-104.0)
LOWEST_KEY = tl.constexpr(-(2**31))
MAX_BLOCK = 4096
PER_ROW = [
    "token_ids_ptr",
    "temperature_ptr",
    "top_k_ptr",
    "top_p_ptr",
    "min_p_ptr",
    "u_ptr",
]


PENALTIES = [
    "row_starts_ptr",
    "token_ids_ptr",
    "counts_ptr",
    "repetition_ptr",
    "presence_ptr",
    "frequency_ptr",
]


@triton.jit(do_not_specialize=PER_ROW)
def sample_kernel(
    token_ids_ptr,
    logits_ptr,
    temperature_ptr,
    top_k_ptr,
    top_p_ptr,
    min_p_ptr,
    u_ptr,
    stride_row: tl.int64,
    VOCAB: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Grid (rows,). A row reads nothing of another, so its token is the same in any batch."""
    row = tl.program_id(0).to(tl.int64)
    row_ptr = logits_ptr + row * stride_row
    temperature = tl.load(temperature_ptr + row)

    maximum = tl.full([], float("-inf"), tl.float32)
    best = tl.zeros([], tl.int32)
    for start in range(0, VOCAB, BLOCK):
        logits = load_logits(row_ptr, start, VOCAB, BLOCK)
        block_maximum = tl.max(logits, 0)
        columns = start + tl.arange(0, BLOCK)
        block_best = tl.min(tl.where(logits == block_maximum, columns, VOCAB), 0)
        best = tl.where(block_maximum > maximum, block_best, best)
        maximum = tl.maximum(maximum, block_maximum)
    if (temperature < GREEDY_BELOW) | (maximum == float("-inf")):
        tl.store(token_ids_ptr + row, best.to(tl.int64))
        return

    top_k = tl.minimum(tl.load(top_k_ptr + row), VOCAB)
    top_p = tl.load(top_p_ptr + row).to(tl.float64)
    min_p = tl.load(min_p_ptr + row)
    top = order_key(maximum).to(tl.int64) + 1
    low = tl.full([], LOWEST_KEY, tl.int64)
    high = low
    ties = tl.zeros([], tl.int64)
    count = tl.full([], VOCAB, tl.int32)
    total = tl.zeros([], tl.float64)
    if (top_k > 0) | (top_p < 1.0):
        for start in range(0, VOCAB, BLOCK):
            weights = tl.exp((load_logits(row_ptr, start, VOCAB, BLOCK) - maximum) / temperature)
            total += tl.sum(weights.to(tl.float64), 0)
    if top_k > 0:
        low, high, count, high_count, low_weight, high_weight = find_end(
            row_ptr, maximum, temperature, low, top, count, total, top_k, False, VOCAB, BLOCK
        )
        ties = (top_k - high_count).to(tl.int64)
        total = high_weight + ties.to(tl.float64) * (low_weight - high_weight) / (count - high_count).to(tl.float64)
    if top_p < 1.0:
        # At least the first token is kept, so a limit of 0 counts as the least that only it reaches.
        limit = tl.maximum(top_p * total, 1e-30)
        weightless = order_key(maximum + WEIGHTLESS * temperature).to(tl.int64)
        k_low = low
        k_ties = tl.where(top_k > 0, ties, VOCAB)
        low, high, count, high_count, low_weight, high_weight = find_end(
            row_ptr, maximum, temperature, tl.maximum(low, weightless), top, count, total, limit, True, VOCAB, BLOCK
        )
        tie_weight = (low_weight - high_weight) / (count - high_count).to(tl.float64)
        ties = tl.ceil(tl.minimum((limit - high_weight) / tl.maximum(tie_weight, 1e-300), VOCAB * 1.0)).to(tl.int64)
        ties = tl.where(count - high_count == 1, 1, tl.maximum(ties, 1))
        ties = tl.where(low == k_low, tl.minimum(ties, k_ties), ties)

    kept_total = _kept(row_ptr, maximum, temperature, low, high, ties, min_p, VOCAB, BLOCK)
    target = tl.load(u_ptr + row) * kept_total
    token = _draw(row_ptr, maximum, temperature, low, high, ties, min_p, target, best, VOCAB, BLOCK)
    tl.store(token_ids_ptr + row, token.to(tl.int64))


@triton.jit
def _kept_weights(
    row_ptr, start, maximum, temperature, low, high, ties_left, min_p, VOCAB: tl.constexpr, BLOCK: tl.constexpr
):
    """Weights [BLOCK] float64 with those of truncated tokens 0, and the number of ties not yet used up."""
    logits = load_logits(row_ptr, start, VOCAB, BLOCK)
    keys = order_key(logits)
    high = high.to(tl.int32)
    tied = ((keys >= low.to(tl.int32)) & (keys < high)).to(tl.int32)
    weights = tl.exp((logits - maximum) / temperature)
    kept = (keys >= high) | ((tied > 0) & (tl.cumsum(tied, 0) <= ties_left))
    weights = tl.where(kept & (weights >= min_p), weights, 0.0)
    return weights.to(tl.float64), ties_left - tl.sum(tied, 0)


@triton.jit
def _kept(row_ptr, maximum, temperature, low, high, ties, min_p, VOCAB: tl.constexpr, BLOCK: tl.constexpr):
    total = tl.zeros([], tl.float64)
    for start in range(0, VOCAB, BLOCK):
        weights, ties = _kept_weights(row_ptr, start, maximum, temperature, low, high, ties, min_p, VOCAB, BLOCK)
        total += tl.sum(weights, 0)
    return total


@triton.jit
def _draw(
    row_ptr, maximum, temperature, low, high, ties, min_p, target, best, VOCAB: tl.constexpr, BLOCK: tl.constexpr
):
    """The first id whose cumulative kept weight exceeds target, or the last kept one if rounding hides it."""
    token = tl.full([], VOCAB, tl.int32)
    last_kept = best
    before = tl.zeros([], tl.float64)
    for start in range(0, VOCAB, BLOCK):
        if token == VOCAB:
            weights, ties = _kept_weights(row_ptr, start, maximum, temperature, low, high, ties, min_p, VOCAB, BLOCK)
            columns = start + tl.arange(0, BLOCK)
            cumulative = before + tl.cumsum(weights, 0)
            token = tl.min(tl.where((cumulative > target) & (weights > 0), columns, VOCAB), 0)
            last_kept = tl.maximum(last_kept, tl.max(tl.where(weights > 0, columns, 0), 0))
            before += tl.sum(weights, 0)
    return tl.where(token == VOCAB, last_kept, token)


@triton.jit(do_not_specialize=PENALTIES)
def penalise_kernel(
    logits_ptr,
    row_starts_ptr,
    token_ids_ptr,
    counts_ptr,
    repetition_ptr,
    presence_ptr,
    frequency_ptr,
    stride_row: tl.int64,
    BLOCK: tl.constexpr,
):
    """Grid (rows,). Only the logits of a row's seen tokens are read and written."""
    row = tl.program_id(0).to(tl.int64)
    repetition = tl.load(repetition_ptr + row)
    presence = tl.load(presence_ptr + row)
    frequency = tl.load(frequency_ptr + row)
    first = tl.load(row_starts_ptr + row)
    end = tl.load(row_starts_ptr + row + 1)
    for start in range(first, end, BLOCK):
        entries = start + tl.arange(0, BLOCK)
        inside = entries < end
        token_ids = tl.load(token_ids_ptr + entries, mask=inside, other=0)
        counts = tl.load(counts_ptr + entries, mask=inside, other=0.0)
        pointers = logits_ptr + row * stride_row + token_ids
        logits = tl.load(pointers, mask=inside, other=0.0)
        logits = tl.where(logits > 0, logits / repetition, logits * repetition)
        logits -= presence * (counts > 0).to(tl.float32) + frequency * counts
        tl.store(pointers, logits, mask=inside)


def sample(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    u: torch.Tensor,
) -> torch.Tensor:
    """One token a row, [R] int64: the first kept id, ascending, whose cumulative weight exceeds u times the total.

    logits: [R, V] float32, rows at any stride. A weight is exp((logit - maximum) / temperature); a token is kept while
    its predecessors (larger logit, or equal logit and lower id) number fewer than top_k, while their share of what
    top_k left is below top_p, and while its weight is at least min_p. The first token is always kept.
    temperature: [R] float32, below 1e-5 = greedy. top_k: [R] int32, 0 = off. top_p: [R] float32 or float64, 1 = off.
    min_p: [R] float32, 0 = off. u: [R] float64 in [0, 1), the row's random number: where it depends on the seed and the
    position only, as docs/sampling.md defines it, a token is the same on any device.
    NaN counts as impossible and +inf as the largest number; a row in which nothing is possible gives id 0.
    """
    token_ids = torch.empty(logits.shape[0], dtype=torch.int64, device=logits.device)
    sample_launch(token_ids, logits, temperature, top_k, top_p, min_p, u).run()
    return token_ids


def sample_launch(
    token_ids: torch.Tensor,
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    u: torch.Tensor,
) -> Launch:
    """The launch of `sample`. Raises ValueError for a layout or dtype the kernel would read wrongly."""
    _check_logits(logits)
    rows, vocab = logits.shape
    float32, float64 = torch.float32, torch.float64
    per_row: dict[str, tuple[torch.Tensor, tuple[torch.dtype, ...]]] = {
        "temperature": (temperature, (float32,)),
        "top_k": (top_k, (torch.int32,)),
        "top_p": (top_p, (float32, float64)),
        "min_p": (min_p, (float32,)),
        "u": (u, (float64,)),
    }
    for name, (tensor, dtypes) in per_row.items():
        require(tensor.dtype in dtypes, f"{name} has dtype {tensor.dtype}, not {dtypes[0]}")
        require(tensor.shape == (rows,) and tensor.is_contiguous(), f"{name} must be {rows} contiguous values")
    block = min(MAX_BLOCK, triton.next_power_of_2(vocab))
    arguments = {
        "token_ids_ptr": token_ids,
        "logits_ptr": logits,
        "stride_row": logits.stride(0),
        "VOCAB": vocab,
        "BLOCK": block,
    } | {f"{name}_ptr": tensor for name, (tensor, _) in per_row.items()}
    return Launch(sample_kernel, (rows,), arguments, num_warps=max(1, block // 256))


def penalise(
    logits: torch.Tensor,
    row_starts: torch.Tensor,
    token_ids: torch.Tensor,
    counts: torch.Tensor,
    repetition: torch.Tensor,
    presence: torch.Tensor,
    frequency: torch.Tensor,
) -> None:
    """Repetition, then presence and frequency penalties, on the logits of the tokens a row has seen, in place.

    Repetition divides a positive logit and multiplies any other (Keskar et al. 2019, "CTRL", 4.1).
    logits: [R, V] float32. row_starts: [R + 1] int32, entries row_starts[r]..row_starts[r + 1] are row r's; token_ids:
    [N] int64, distinct in a row; counts: [N] float32, how often each is in the output; the penalties: [R] float32.
    """
    penalise_launch(logits, row_starts, token_ids, counts, repetition, presence, frequency).run()


def penalise_launch(
    logits: torch.Tensor,
    row_starts: torch.Tensor,
    token_ids: torch.Tensor,
    counts: torch.Tensor,
    repetition: torch.Tensor,
    presence: torch.Tensor,
    frequency: torch.Tensor,
) -> Launch:
    """The launch of `penalise`."""
    _check_logits(logits)
    rows = logits.shape[0]
    require(row_starts.shape == (rows + 1,), f"{row_starts.shape[0]} row starts for {rows} rows")
    require(token_ids.shape == counts.shape, f"{token_ids.shape[0]} token ids, {counts.shape[0]} counts")
    arguments = {
        "logits_ptr": logits,
        "row_starts_ptr": row_starts,
        "token_ids_ptr": token_ids,
        "counts_ptr": counts,
        "repetition_ptr": repetition,
        "presence_ptr": presence,
        "frequency_ptr": frequency,
        "stride_row": logits.stride(0),
        "BLOCK": 512,
    }
    return Launch(penalise_kernel, (rows,), arguments)


def _check_logits(logits: torch.Tensor) -> None:
    require(logits.ndim == 2, f"logits must be [rows, vocabulary], not {list(logits.shape)}")
    require(logits.dtype == torch.float32, f"logits have dtype {logits.dtype}, not torch.float32")
    require(logits.stride(1) == 1, "the last dimension of logits must have stride 1")
