"""Sampling against a full sort in float64."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from weir_kernels.sampling import penalise, sample

NUMBERS = torch.rand(2000, dtype=torch.float64, generator=torch.Generator().manual_seed(9)).tolist()


def by_sorting(row: list[float], temperature: float, top_k: int, top_p: float, min_p: float, u: float) -> int:
    """The definition: sort, keep a prefix, walk the kept ids upwards."""
    order = sorted(range(len(row)), key=lambda i: (-row[i], i))
    weights = [math.exp((row[i] - row[order[0]]) / temperature) for i in order]
    if top_k:
        order, weights = order[:top_k], weights[:top_k]
    total = math.fsum(weights)
    kept: dict[int, float] = {}
    for rank, (token, weight) in enumerate(zip(order, weights, strict=True)):
        below_p = top_p >= 1 or math.fsum(weights[:rank]) < top_p * total
        if rank == 0 or (below_p and weight >= min_p):
            kept[token] = weight
    target = u * math.fsum(kept.values())
    reached = 0.0
    for token in sorted(kept):
        reached += kept[token]
        if reached > target:
            return token
    return max(kept)


def draw(
    logits: torch.Tensor,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    first: int = 0,
    numbers: list[float] | None = None,
) -> list[int]:
    rows = len(logits)
    return sample(
        logits,
        torch.full((rows,), temperature),
        torch.full((rows,), top_k, dtype=torch.int32),
        torch.full((rows,), top_p, dtype=torch.float64),
        torch.full((rows,), min_p),
        torch.tensor(numbers or NUMBERS[first : first + rows], dtype=torch.float64),
    ).tolist()


@pytest.mark.parametrize("vocabulary", [1, 5, 300, 9000])
def test_a_row_without_filters_is_drawn_by_inverse_cdf(vocabulary: int) -> None:
    logits = torch.randn(4, vocabulary, generator=torch.Generator().manual_seed(3)) * 2
    expected = [by_sorting(logits[r].tolist(), 0.8, 0, 1.0, 0.0, NUMBERS[40 + r]) for r in range(4)]
    assert draw(logits, temperature=0.8, first=40) == expected


@pytest.mark.parametrize(
    ("top_k", "top_p", "min_p"), list(itertools.product([0, 1, 3, 400], [1.0, 0.9, 0.0], [0.0, 0.05]))
)
def test_truncation_keeps_what_a_full_sort_keeps(top_k: int, top_p: float, min_p: float) -> None:
    """Logits in steps of 1/4, so that every filter ends among equal ones."""
    logits = (torch.randn(2, 300, generator=torch.Generator().manual_seed(5)) * 8).round() / 4
    expected = [by_sorting(logits[r].tolist(), 0.7, top_k, top_p, min_p, NUMBERS[60 + r]) for r in range(2)]
    assert draw(logits, 0.7, top_k, top_p, min_p, first=60) == expected


def test_top_k_keeps_exactly_k_of_equal_logits_the_lowest_ids_first() -> None:
    assert draw(torch.zeros(4, 200), top_k=3, numbers=[0.0, 0.4, 0.7, 0.999]) == [0, 1, 2, 2]


def test_ties_are_counted_across_the_blocks_a_row_is_read_in() -> None:
    """20 of 9000 are equal and largest, every 450th: the first 19 ids stay, of which the last is 8100."""
    logits = torch.full((1, 9000), -5.0)
    logits[0, ::450] = 2.0
    first = next(i for i, u in enumerate(NUMBERS) if u > 0.98)
    assert draw(logits, top_k=19, first=first) == [8100]
    assert draw(logits, top_k=20, first=first) == [8550]


def test_top_p_keeps_the_least_prefix_that_reaches_it() -> None:
    """Weights 4, 2, 1, 1: the first two reach 0.75 exactly, so a third joins only above it."""
    logits = torch.tensor([1.0, 4.0, 1.0, 2.0]).log().expand(3, 4)
    assert draw(logits, top_p=0.75, numbers=[0.0, 0.6, 0.999]) == [1, 1, 3]
    assert draw(logits, top_p=0.8, numbers=[0.1, 0.6, 0.999]) == [0, 1, 3]


def test_greedy_takes_the_lowest_id_of_the_largest_logits() -> None:
    logits = torch.tensor([[0.0, 3.0, 3.0], [-0.0, 0.0, -1.0], [5.0, float("nan"), 1.0]])
    assert draw(logits, temperature=0.0) == [1, 0, 0]


def test_broken_logits_hurt_their_own_row_only() -> None:
    nan, inf = float("nan"), float("inf")
    logits = torch.tensor([[nan, nan, nan], [-inf, -inf, -inf], [1.0, inf, nan], [-inf, 2.0, -inf]])
    assert draw(logits, top_k=2, top_p=0.9) == [0, 0, 1, 1]


def test_a_top_k_beyond_the_vocabulary_is_no_filter() -> None:
    logits = torch.randn(3, 40, generator=torch.Generator().manual_seed(1))
    assert draw(logits, top_k=2**30) == draw(logits)


def test_a_row_gets_the_same_token_in_any_batch() -> None:
    logits = torch.randn(3, 300, generator=torch.Generator().manual_seed(2))
    together = draw(logits, 1.3, 50, 0.8)
    assert [draw(logits[r : r + 1], 1.3, 50, 0.8, first=r)[0] for r in range(3)] == together


def test_penalties_change_seen_tokens_only() -> None:
    logits = torch.tensor([[2.0, -2.0, 1.0, 0.5], [1.0, 1.0, 1.0, 1.0]])
    penalise(
        logits,
        torch.tensor([0, 3, 3], dtype=torch.int32),
        torch.tensor([0, 1, 3]),
        torch.tensor([2.0, 0.0, 1.0]),
        torch.tensor([2.0, 5.0]),
        torch.tensor([0.25, 5.0]),
        torch.tensor([0.5, 5.0]),
    )
    # 2 / 2 - 0.25 - 2 * 0.5; -2 * 2, in the prompt only; untouched; 0.5 / 2 - 0.25 - 0.5
    assert logits.tolist() == [[-0.25, -4.0, 1.0, -0.5], [1.0, 1.0, 1.0, 1.0]]


def test_wrong_dtypes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"logits have dtype torch\.float16, not torch\.float32"):
        draw(torch.zeros(1, 4).half())
    with pytest.raises(ValueError, match="last dimension of logits must have stride 1"):
        draw(torch.zeros(4, 2).t())
