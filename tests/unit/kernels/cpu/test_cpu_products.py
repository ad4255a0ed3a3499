"""The packed products, apart from the rest: a model whose layers add nothing, so that logits = norm(embed) W^T."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from weir.models.loader import Weights
from weir.models.spec import ModelSpec
from weir_kernels import reference as oracle

from tests.unit.kernels.cpu.feeding import Feeder, logits_of
from tests.unit.kernels.cpu.models import fused, make_spec, make_weights, random_tokens


def transparent(hidden_size: int, vocab_size: int, tied: bool = False) -> tuple[ModelSpec, Weights]:
    spec = make_spec(num_layers=1, hidden_size=hidden_size, vocab_size=vocab_size, tie_word_embeddings=tied)
    weights = make_weights(spec)
    weights["layers.0.o"].zero_()
    weights["layers.0.down"].zero_()
    return spec, weights


def expected_logits(spec: ModelSpec, weights: Weights, tokens: list[int]) -> torch.Tensor:
    """In float64, from the inputs of the product as they are after their rounding to bf16."""
    x = oracle.rms_norm(weights["embed"][tokens].float(), weights["final_norm"], spec.rms_norm_eps).bfloat16()
    return x.double() @ weights["lm_head"].double().T


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize(
    ("hidden_size", "vocab_size"), [(1, 1), (7, 31), (8, 32), (9, 33), (50, 101), (63, 64), (64, 17), (257, 200)]
)
def test_any_number_of_inputs_and_outputs(isa: str, hidden_size: int, vocab_size: int, tied: bool) -> None:
    spec, weights = transparent(hidden_size, vocab_size, tied)
    tokens = random_tokens(spec, 14)
    (logits,) = logits_of(fused(spec, weights, isa), [tokens])
    # A few inputs may round to the other bf16 neighbour where float32 sums differ in the last bit.
    torch.testing.assert_close(logits.double(), expected_logits(spec, weights, tokens), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("rows", range(1, 71))
def test_any_number_of_rows(rows: int) -> None:
    spec, weights = transparent(50, 101)
    tokens = random_tokens(spec, rows)
    (logits,) = logits_of(fused(spec, weights), [tokens])
    assert logits.shape == (rows, 101)
    torch.testing.assert_close(logits.double(), expected_logits(spec, weights, tokens), rtol=2e-2, atol=2e-2)


def test_more_rows_than_one_block_of_the_cache_holds(isa: str) -> None:
    spec, weights = transparent(1000, 40)
    tokens = random_tokens(spec, 400)
    (logits,) = logits_of(fused(spec, weights, isa), [tokens])
    torch.testing.assert_close(logits.double(), expected_logits(spec, weights, tokens), rtol=3e-2, atol=3e-2)


def test_a_row_is_the_same_bits_whatever_the_number_of_rows(isa: str) -> None:
    spec, weights = transparent(50, 101)
    decoder = fused(spec, weights, isa)
    tokens = random_tokens(spec, 70)
    (alone,) = logits_of(decoder, [tokens[:1]])
    for rows in (2, 6, 7, 12, 13, 25, 70):
        (together,) = logits_of(decoder, [tokens[:rows]])
        assert torch.equal(together[:1], alone)


def test_greedy_takes_the_largest_logit_of_every_row(isa: str) -> None:
    spec = make_spec(vocab_size=1001)
    decoder = fused(spec, make_weights(spec), isa)
    feeder = Feeder(decoder, [random_tokens(spec, 70)], 16)
    batch = feeder.batch([(0, 0, 70)])
    logits = decoder.forward(batch, feeder.kv)
    ids = decoder.greedy(batch, feeder.kv)
    assert ids.dtype == torch.int64
    assert torch.equal(ids, logits.argmax(dim=1))


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_greedy_takes_the_lowest_of_equal_logits(isa: str, threads: int) -> None:
    spec, weights = transparent(50, 300)
    best = weights["embed"][3]
    # The same row of the head four times, in different lanes, panels and threads' shares; all others are its opposite.
    weights["lm_head"] = (-best).repeat(300, 1)
    for token in (45, 77, 214, 299):
        weights["lm_head"][token] = best
    feeder = Feeder(fused(spec, weights, isa, threads), [[3, 3, 3]], 16)
    assert feeder.decoder.greedy(feeder.batch([(0, 0, 3)]), feeder.kv).tolist() == [45, 45, 45]


def test_greedy_finds_the_largest_when_all_logits_are_negative(isa: str) -> None:
    # 33 outputs: the padding of the second panel has logits of zero, which must not win.
    spec, weights = transparent(50, 33)
    weights["lm_head"] = -weights["embed"][3].repeat(33, 1)
    weights["lm_head"][32] /= 2
    feeder = Feeder(fused(spec, weights, isa), [[3]], 16)
    assert feeder.decoder.greedy(feeder.batch([(0, 0, 1)]), feeder.kv).tolist() == [32]


def test_logits_come_for_the_wanted_rows_in_the_wanted_order(isa: str) -> None:
    spec = make_spec()
    feeder = Feeder(fused(spec, make_weights(spec), isa), [random_tokens(spec, 40)], 16)
    batch = feeder.batch([(0, 0, 40)])
    every = feeder.decoder.forward(batch, feeder.kv).clone()
    wanted = torch.tensor([39, 0, 17, 17])
    rows = feeder.decoder.forward(dataclasses.replace(batch, logit_rows=wanted), feeder.kv)
    assert torch.equal(rows, every[wanted])
    none = feeder.decoder.forward(dataclasses.replace(batch, logit_rows=wanted[:0]), feeder.kv)
    assert none.shape == (0, spec.vocab_size)
