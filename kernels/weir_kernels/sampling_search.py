"""Where a truncated vocabulary ends, found without sorting: device code of `sampling`.

Tokens are ordered by logit, larger first, and among equal logits by id, lower first. top_k and top_p each keep a
prefix of that order. A prefix ends inside a bracket [low, high) of the logits' integer keys; the bracket is quartered
by reading the row once a round, until it holds one token, or several of one logit of which the lowest ids are kept.
"""

# ruff: noqa: N803
# mypy: disable-error-code="untyped-decorator,no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

FLOAT32_MAX = tl.constexpr(3.4028234663852886e38)


@triton.jit
def load_logits(row_ptr, start, VOCAB: tl.constexpr, BLOCK: tl.constexpr):
    """BLOCK logits from `start`: NaN counts as impossible, +inf as the largest number, -0.0 as 0.0."""
    columns = start + tl.arange(0, BLOCK)
    logits = tl.load(row_ptr + columns, mask=columns < VOCAB, other=float("-inf"))
    logits = tl.where(logits == logits, logits, float("-inf"))
    return tl.minimum(logits, FLOAT32_MAX) + 0.0


@triton.jit
def order_key(logits):
    """int32 keys that sort as the logits do: the bits of a float, those of negative numbers flipped."""
    bits = logits.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _measure(row_ptr, maximum, temperature, first, second, third, VOCAB: tl.constexpr, BLOCK: tl.constexpr):
    """How many tokens have a key of at least each of three, and how much they weigh."""
    first_count = tl.zeros([BLOCK], tl.int32)
    second_count = tl.zeros([BLOCK], tl.int32)
    third_count = tl.zeros([BLOCK], tl.int32)
    first_weight = tl.zeros([BLOCK], tl.float32)
    second_weight = tl.zeros([BLOCK], tl.float32)
    third_weight = tl.zeros([BLOCK], tl.float32)
    first = first.to(tl.int32)
    second = second.to(tl.int32)
    third = third.to(tl.int32)
    for start in range(0, VOCAB, BLOCK):
        logits = load_logits(row_ptr, start, VOCAB, BLOCK)
        inside = start + tl.arange(0, BLOCK) < VOCAB
        keys = order_key(logits)
        weights = tl.exp((logits - maximum) / temperature)
        first_count += ((keys >= first) & inside).to(tl.int32)
        second_count += ((keys >= second) & inside).to(tl.int32)
        third_count += ((keys >= third) & inside).to(tl.int32)
        first_weight += tl.where(keys >= first, weights, 0.0)
        second_weight += tl.where(keys >= second, weights, 0.0)
        third_weight += tl.where(keys >= third, weights, 0.0)
    return (
        tl.sum(first_count, 0),
        tl.sum(second_count, 0),
        tl.sum(third_count, 0),
        tl.sum(first_weight.to(tl.float64), 0),
        tl.sum(second_weight.to(tl.float64), 0),
        tl.sum(third_weight.to(tl.float64), 0),
    )


@triton.jit
def find_end(
    row_ptr,
    maximum,
    temperature,
    low,
    high,
    low_count,
    low_weight,
    limit,
    BY_WEIGHT: tl.constexpr,
    VOCAB: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Narrows [low, high) to where the count, or the weight, of the tokens from the top first reaches `limit`.

    Tokens of at least `low` (low_count, low_weight of them) reach it, those of at least `high`, none at first, do not.
    Returns low, high and the counts and weights at both.
    """
    high_count = tl.zeros([], tl.int32)
    high_weight = tl.zeros([], tl.float64)
    while (high - low > 1) & (low_count - high_count > 1):
        step = tl.maximum((high - low) // 4, 1)
        first = low + step
        second = tl.minimum(first + step, high)
        third = tl.minimum(second + step, high)
        first_count, second_count, third_count, first_weight, second_weight, third_weight = _measure(
            row_ptr, maximum, temperature, first, second, third, VOCAB, BLOCK
        )
        if BY_WEIGHT:
            first_reached = first_weight >= limit
            second_reached = second_weight >= limit
            third_reached = third_weight >= limit
        else:
            first_reached = first_count >= limit
            second_reached = second_count >= limit
            third_reached = third_count >= limit
        if third_reached:
            low, low_count, low_weight = third, third_count, third_weight
        elif second_reached:
            low, low_count, low_weight = second, second_count, second_weight
            high, high_count, high_weight = third, third_count, third_weight
        elif first_reached:
            low, low_count, low_weight = first, first_count, first_weight
            high, high_count, high_weight = second, second_count, second_weight
        else:
            high, high_count, high_weight = first, first_count, first_weight
    return low, high, low_count, high_count, low_weight, high_weight
