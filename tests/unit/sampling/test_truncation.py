"""top_k, top_p and min_p keep what their definitions say, on the short way (few candidates) and on the long one."""

from __future__ import annotations

import math

import pytest
import torch
from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper
from weir.engine.request import SamplingParams
from weir.engine.row_weights import RowWeights
from weir.engine.truncation import Truncation, keep_leading, keep_long
from weir.engine.vocabulary_order import chunked, finite_maxima, leading

from tests.unit.sampling.rows import params, probabilities

CPU = torch.device("cpu")


def long_way(logits: torch.Tensor, specs: list[SamplingParams]) -> torch.Tensor:
    """Probabilities [R, V] after weighing and truncating whole rows."""
    chunks = chunked(logits.clone())
    maxima = finite_maxima(chunks)
    weights = RowWeights(chunks.shape[1] * chunks.shape[2], CPU)
    filters = Truncation.of(specs, CPU)
    weights.load(chunks.flatten(1), maxima.amax(-1), torch.arange(len(specs)), filters.temperature)
    keep_long(weights, filters)
    kept = weights.chunks.flatten(1)[:, : logits.shape[1]].double()
    return kept / kept.sum(-1, keepdim=True)


def short_way(logits: torch.Tensor, specs: list[SamplingParams], candidates: int) -> torch.Tensor:
    """The same from the first `candidates` tokens; every row must end among them."""
    chunks = chunked(logits.clone())
    maxima = finite_maxima(chunks)
    filters = Truncation.of(specs, CPU)
    whole = (logits.double() - logits.double().amax(-1, keepdim=True)) / filters.temperature[:, None]
    best, ids = leading(chunks, maxima, torch.arange(len(specs)), candidates)
    kept, complete = keep_leading(best, filters, whole.exp().sum(-1))
    assert complete.all()
    spread = torch.zeros(len(specs), chunks.shape[1] * chunks.shape[2], dtype=torch.float64).scatter(1, ids, kept)
    return spread[:, : logits.shape[1]] / spread.sum(-1, keepdim=True)


def kept(logits: list[float], **changes: object) -> list[int]:
    """Ids kept by the long way, which must be those that the short way and the definition keep."""
    rows, specs = torch.tensor([logits]), [params(**changes)]
    found = long_way(rows, specs)[0].nonzero().squeeze(1).tolist()
    assert found == [token for token, p in enumerate(probabilities(rows[0].tolist(), specs[0])) if p > 0]
    spec, width = specs[0], len(logits)
    if 0 < spec.top_k <= width:
        assert short_way(rows, specs, spec.top_k)[0].nonzero().squeeze(1).tolist() == found
    elif spec.top_k == 0 and len(found) < width and (spec.top_p < 1 or spec.min_p > 0):
        assert short_way(rows, specs, width)[0].nonzero().squeeze(1).tolist() == found
    return [int(token) for token in found]


def log(*values: float) -> list[float]:
    return [math.log(value) if value else -math.inf for value in values]


def test_top_k_with_ties_keeps_exactly_k_lowest_ids_first() -> None:
    """Ties at the k-th logit were all kept alone and cut in a batch of eight; 3 tokens were reachable with top_k 2."""
    assert kept(log(0.4, 0.3, 0.3, 0.0), top_k=2) == [0, 1]
    assert kept([1.0, 3.0, 2.0, 2.0, 2.0], top_k=2) == [1, 2]
    assert kept([0.0] * 200, top_k=3) == [0, 1, 2]


def test_top_k_counts_zero_and_minus_zero_as_equal() -> None:
    assert kept([-1.0, -0.0, 0.0, -0.0], top_k=2) == [1, 2]


def test_top_k_larger_than_the_vocabulary_keeps_everything() -> None:
    """One-hot probabilities with top_k 2**30 once gave token 1,061,800,448."""
    assert kept(log(0.0, 0.0, 1.0), top_k=2**30) == [2]
    assert kept([1.0, 2.0, 3.0], top_k=2**30) == [0, 1, 2]


@pytest.mark.parametrize("top_p", [1e-9, 0.3, 0.4999])
def test_the_first_token_is_kept_when_it_alone_exceeds_top_p(top_p: float) -> None:
    assert kept(log(0.25, 0.5, 0.25), top_p=top_p) == [1]


def test_top_p_stops_at_the_token_that_reaches_it_exactly() -> None:
    assert kept([0.0, 0.0, 0.0, 0.0], top_p=0.5) == [0, 1]
    assert kept([0.0, 0.0, 0.0, 0.0], top_p=0.51) == [0, 1, 2]


def test_top_p_one_keeps_every_possible_token() -> None:
    assert kept(log(0.1, 0.0, 0.2, 0.7), top_p=1.0) == [0, 2, 3]


def test_top_p_is_a_share_of_what_top_k_left() -> None:
    """Of probabilities .4 .3 .2 .1, top_k 2 leaves 4/7 and 3/7: the first exceeds .5, though .4 does not."""
    assert kept(log(0.4, 0.3, 0.2, 0.1), top_k=2, top_p=0.5) == [0]
    assert kept(log(0.4, 0.3, 0.2, 0.1), top_p=0.5) == [0, 1]


def test_top_k_one_with_any_top_p_is_the_arg_max() -> None:
    assert kept(log(0.1, 0.2, 0.4, 0.3), top_k=1, top_p=0.8) == [2]


def test_min_p_is_relative_to_the_largest_probability_after_temperature() -> None:
    """exp(-1 / 2) = .61 and exp(-3 / 2) = .22 at temperature 2, but .37 and .05 at 1: min_p on logits got neither."""
    assert kept([3.0, 2.0, 0.0], min_p=0.2, temperature=2.0) == [0, 1, 2]
    assert kept([3.0, 2.0, 0.0], min_p=0.3, temperature=2.0) == [0, 1]
    assert kept([3.0, 2.0, 0.0], min_p=0.3) == [0, 1]
    assert kept([3.0, 2.0, 0.0], min_p=0.4) == [0]


def test_min_p_one_keeps_the_ties_of_the_maximum() -> None:
    assert kept([1.0, 2.0, 2.0, 0.0], min_p=1.0) == [1, 2]


def test_a_dominant_token_does_not_shrink_top_k() -> None:
    """A threshold search in a fixed buffer of outliers collapsed when one token had more than 40 %."""
    assert kept(log(0.9, *[0.001] * 100), top_k=50) == list(range(50))


def test_a_suppressed_token_is_never_kept_while_others_are_possible() -> None:
    assert kept([-math.inf, 1.0, -math.inf, 0.5], top_k=4) == [1, 3]


def test_the_temperature_may_be_tiny_or_huge() -> None:
    assert kept([1.0, 1.0, 0.999], temperature=1e-5, top_p=0.9) == [0, 1]
    assert kept([5.0, -5.0, 0.0], temperature=100.0, top_p=0.99) == [0, 1, 2]


@pytest.mark.parametrize("scale", [0.2, 3.0])
@pytest.mark.parametrize(
    "spec",
    [
        {"top_k": 7},
        {"top_k": 150},
        {"top_p": 0.3},
        {"top_p": 0.95},
        {"min_p": 0.1},
        {"temperature": 0.6, "top_k": 40, "top_p": 0.9},
        {"temperature": 1.7, "top_k": 200, "top_p": 0.8, "min_p": 0.3},
        {"temperature": 0.8, "top_p": 0.97, "min_p": 0.05},
    ],
)
def test_probabilities_equal_those_of_transformers_warpers(spec: dict[str, float], scale: float) -> None:
    logits = torch.randn(6, 700, generator=torch.Generator().manual_seed(9)) * scale
    scores, prompt = logits.clone(), torch.zeros(6, 1, dtype=torch.int64)
    for warper in (
        TemperatureLogitsWarper(spec.get("temperature", 1.0)),
        TopKLogitsWarper(int(spec.get("top_k", 700))),
        TopPLogitsWarper(spec.get("top_p", 1.0)),
        MinPLogitsWarper(spec.get("min_p", 0.0)),
    ):
        scores = warper(prompt, scores)
    theirs = torch.softmax(scores.double(), dim=-1)
    ours = long_way(logits, [params(**spec)] * 6)
    assert torch.equal(ours > 0, theirs > 0)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-9)
    num_kept = int((theirs > 0).sum(-1).max())
    if num_kept < 700:
        short = short_way(logits, [params(**spec)] * 6, max(num_kept + 1, int(spec.get("top_k", 0))))
        assert torch.equal(short > 0, theirs > 0)
        torch.testing.assert_close(short, theirs, rtol=1e-5, atol=1e-9)


def test_the_long_way_handles_a_whole_row_of_equal_logits() -> None:
    assert kept([2.5] * 1000, top_p=0.25) == list(range(250))
    assert kept([2.5] * 1000, top_k=700, top_p=0.5) == list(range(350))


def test_the_long_way_looks_below_the_span_of_its_buckets() -> None:
    deep = [-float(step) for step in range(100)]
    assert kept(deep, top_k=60) == list(range(60))
    assert kept(deep, temperature=0.5, top_k=40) == list(range(40))
