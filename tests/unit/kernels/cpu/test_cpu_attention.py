"""Attention, rotary embedding and the KV cache of the fused step against torch, every slot not owned holding NaN."""

from __future__ import annotations

import dataclasses
import functools

import pytest
import torch
from weir.models.spec import ModelSpec

from tests.unit.kernels.cpu.feeding import Feeder, Steps, in_chunks, logits_of
from tests.unit.kernels.cpu.models import (
    assert_as_good_as_torch,
    fused,
    make_spec,
    make_weights,
    random_tokens,
    reference,
)


@functools.cache
def torch_logits(spec: ModelSpec, lengths: tuple[int, ...], dtype: torch.dtype, block_size: int) -> torch.Tensor:
    """Of all sequences, each computed whole. Kept, because every instruction set is compared with the same."""
    sequences = [random_tokens(spec, length, seed=length) for length in lengths]
    return torch.cat(logits_of(reference(spec, make_weights(spec), dtype), sequences, None, block_size))


def check(spec: ModelSpec, lengths: list[int], steps: Steps | None, isa: str, block_size: int = 16) -> None:
    sequences = [random_tokens(spec, length, seed=length) for length in lengths]
    actual = torch.cat(logits_of(fused(spec, make_weights(spec), isa), sequences, steps, block_size))
    exact, rounded = (torch_logits(spec, tuple(lengths), d, block_size) for d in (torch.float32, torch.bfloat16))
    assert_as_good_as_torch(actual, exact, rounded)


@pytest.mark.parametrize("group", [1, 2, 3, 4, 5, 6, 7, 8, 13])
def test_any_number_of_query_heads_shares_a_kv_head(isa: str, group: int) -> None:
    check(make_spec(num_heads=2 * group, num_kv_heads=2), [70, 33], [{0: 69, 1: 33}, {0: 1}], isa)


def test_one_kv_head_for_more_query_heads_than_a_tile_has_rows(isa: str) -> None:
    check(make_spec(num_heads=71, num_kv_heads=1), [40], [{0: 39}, {0: 1}], isa)


@pytest.mark.parametrize("head_dim", [2, 6, 16, 24, 34, 64, 80, 96, 128, 256])
def test_any_head_dim(isa: str, head_dim: int) -> None:
    check(make_spec(num_heads=4, num_kv_heads=2, head_dim=head_dim), [75, 20], [{0: 70, 1: 19}, {0: 5, 1: 1}], isa)


@pytest.mark.parametrize("block_size", [16, 32, 48, 128])
@pytest.mark.parametrize("offset", [-1, 0, 1])
def test_lengths_around_a_block_boundary(isa: str, block_size: int, offset: int) -> None:
    lengths = [block_size + offset, 2 * block_size + offset]
    check(make_spec(), lengths, [{0: lengths[0] - 1, 1: lengths[1] - 1}, {0: 1, 1: 1}], isa, block_size)


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 63, 64, 65, 511, 512, 513, 1030])
def test_decodes_of_every_length_around_a_tile_and_a_split(isa: str, length: int) -> None:
    check(make_spec(), [length + 1], [{0: length}, {0: 1}], isa)


@pytest.mark.parametrize("chunk", [1, 7, 16, 50, 64])
def test_a_prompt_in_chunks(isa: str, chunk: int) -> None:
    check(make_spec(), [150], in_chunks(150, chunk), isa)


@pytest.mark.parametrize("window", [1, 2, 16, 17, 63, 64, 65, 100, 600])
@pytest.mark.parametrize("chunk", [1, 40])
def test_a_sliding_window(isa: str, window: int, chunk: int) -> None:
    length = 150 if window < 600 else 640
    steps = [{0: length - 40}, *({0: min(chunk, 40)} for _ in range(40 // chunk))]
    check(make_spec(sliding_window=(window, None)), [length], steps, isa)


def test_a_window_never_reads_the_blocks_it_has_left_behind(isa: str) -> None:
    spec = make_spec(sliding_window=(20, 20))
    weights = make_weights(spec)
    tokens = random_tokens(spec, 100)
    (whole,) = logits_of(fused(spec, weights, isa), [tokens])
    feeder = Feeder(fused(spec, weights, isa), [tokens], 16)
    feeder.step({0: 90})
    # Position 90 sees 71..90 and position 99 sees 80..99: blocks 0 to 3 may be given to others.
    for block in feeder.tables[0][:4]:
        feeder.kv.data[:, block] = float("nan")
    feeder.tables[0][:4] = [0, 0, 0, 0]
    for count in (1, 2, 6, 1):
        feeder.step({0: count})
    assert torch.equal(torch.cat(feeder.rows[0]), whole)


def test_decodes_and_chunks_in_one_batch(isa: str) -> None:
    steps: Steps = [{0: 300, 1: 5}, {0: 1, 1: 1, 2: 90}, {0: 1, 1: 1, 2: 1, 3: 33}, {0: 98, 1: 2, 2: 29, 3: 7}]
    check(make_spec(), [400, 9, 120, 40], steps, isa)


def test_a_token_without_a_slot_is_not_written(isa: str) -> None:
    spec = make_spec()
    feeder = Feeder(fused(spec, make_weights(spec), isa), [random_tokens(spec, 40)], 16)
    feeder.step({0: 40})
    before = feeder.kv.data.clone()
    for ranges in ([(0, 30, 40)], [(0, 39, 40)]):
        batch = feeder.batch(ranges)
        again = feeder.decoder.forward(
            dataclasses.replace(batch, slot_mapping=torch.full_like(batch.slot_mapping, -1)), feeder.kv
        )
        assert torch.equal(again, feeder.rows[0][0][ranges[0][1] :])
    assert torch.equal(feeder.kv.data.view(torch.int16), before.view(torch.int16))


def test_only_the_tokens_own_slots_are_written(isa: str) -> None:
    spec = make_spec(num_layers=1, num_kv_heads=1, num_heads=2, head_dim=6)
    feeder = Feeder(fused(spec, make_weights(spec), isa), [random_tokens(spec, 37)], 32)
    feeder.step({0: 37})
    # K and V of 37 tokens, heads padded to 16; everything else in the 3 blocks is the poison.
    assert int(feeder.kv.data.isfinite().sum()) == 37 * 2 * 16


def test_copied_blocks_continue_as_the_original(isa: str) -> None:
    spec = make_spec()
    tokens = random_tokens(spec, 33)
    feeder = Feeder(fused(spec, make_weights(spec), isa), [tokens, tokens], 16)
    feeder.step({0: 32})
    feeder.decoder.copy_blocks(feeder.kv, feeder.tables[0][:2], feeder.tables[1][:2])
    feeder.computed[1] = 32
    feeder.step({0: 1, 1: 1})
    assert torch.equal(feeder.rows[0][-1], feeder.rows[1][-1])


def test_a_value_that_is_nan_in_the_sequence_itself_stays_visible(isa: str) -> None:
    spec = make_spec()
    feeder = Feeder(fused(spec, make_weights(spec), isa), [random_tokens(spec, 20)], 32)
    feeder.step({0: 19})
    feeder.kv.data[:, feeder.tables[0][0]] = float("nan")
    feeder.step({0: 1})
    assert bool(feeder.rows[0][-1].isnan().all())
