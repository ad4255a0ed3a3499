"""The decoder's logits against transformers, float32, for every family and every way to cut a prompt into steps."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel
from weir.models.build import build_decoder
from weir.models.decoder import Decoder

from tests.unit.models import tiny
from tests.unit.models.paging import PagedSequences

RELATIVE_ERROR = 1e-4


@pytest.fixture(scope="module", params=list(tiny.configs()))
def reference(request: pytest.FixtureRequest) -> PreTrainedModel:
    return tiny.make(tiny.configs()[request.param])


@pytest.fixture(scope="module", params=["reference", "cpu"])
def decoder(
    request: pytest.FixtureRequest, reference: PreTrainedModel, tmp_path_factory: pytest.TempPathFactory
) -> Decoder:
    folder = tiny.save(reference, tmp_path_factory.mktemp("model"))
    return build_decoder(folder, device="cpu", kernels=request.param)


def assert_same_logits(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert actual.dtype == torch.float32
    error = (actual - expected).abs().max().item()
    assert error <= RELATIVE_ERROR * expected.abs().max().item()


def test_a_full_prefill_gives_the_logits_of_transformers(decoder: Decoder, reference: PreTrainedModel) -> None:
    tokens = tiny.random_tokens(45)
    paged = PagedSequences(decoder, [tokens])
    paged.step({0: 45})
    assert_same_logits(paged.all_logits(0), tiny.reference_logits(reference, tokens))


@pytest.mark.parametrize("chunk", [1, 3, 4, 17])
def test_a_prompt_computed_in_chunks_gives_the_same_logits(
    decoder: Decoder, reference: PreTrainedModel, chunk: int
) -> None:
    tokens = tiny.random_tokens(35)
    paged = PagedSequences(decoder, [tokens])
    while paged.computed[0] < 35:
        paged.step({0: min(chunk, 35 - paged.computed[0])})
    assert_same_logits(paged.all_logits(0), tiny.reference_logits(reference, tokens))


def test_sequences_of_a_ragged_batch_do_not_see_each_other(decoder: Decoder, reference: PreTrainedModel) -> None:
    sequences = [tiny.random_tokens(count, seed=count) for count in (40, 9, 33, 22)]
    paged = PagedSequences(decoder, sequences)
    paged.step({0: 20, 1: 5})
    paged.step({0: 1, 1: 1, 2: 30})
    paged.step({0: 1, 1: 1, 2: 1, 3: 6})
    paged.step({0: 8, 1: 1, 2: 1, 3: 12})
    paged.step({0: 1, 1: 1, 2: 1, 3: 1})
    paged.step({0: 9, 3: 3})
    for index, tokens in enumerate(sequences):
        assert paged.computed[index] == len(tokens)
        assert_same_logits(paged.all_logits(index), tiny.reference_logits(reference, tokens))


def test_a_decode_gives_the_same_logits_alone_and_among_others(decoder: Decoder) -> None:
    sequences = [tiny.random_tokens(count, seed=count) for count in (30, 7, 64, 31, 12, 50)]
    alone = PagedSequences(decoder, sequences[:1])
    together = PagedSequences(decoder, sequences)
    alone.step({0: 29})
    together.step({index: len(tokens) - 1 for index, tokens in enumerate(sequences)})
    alone.step({0: 1})
    together.step(dict.fromkeys(range(6), 1))
    assert (alone.all_logits(0)[-1] - together.all_logits(0)[-1]).abs().max() < 1e-4
    assert alone.all_logits(0)[-1].argmax() == together.all_logits(0)[-1].argmax()


def test_logits_are_computed_for_the_wanted_rows_only(decoder: Decoder) -> None:
    paged = PagedSequences(decoder, [tiny.random_tokens(10)])
    paged.step({0: 10})
    batch = paged._batch([(0, 0, 10)])
    object.__setattr__(batch, "logit_rows", torch.tensor([9, 2]))
    rows = decoder.forward(batch, paged._kv)
    assert rows.shape == (2, tiny.VOCAB)
    assert_same_logits(rows, paged.all_logits(0)[[9, 2]])


def test_copied_blocks_continue_as_the_original(tmp_path: Path) -> None:
    decoder = build_decoder(tiny.save(tiny.make(tiny.configs()["llama2"]), tmp_path), device="cpu")
    tokens = tiny.random_tokens(9)
    paged = PagedSequences(decoder, [tokens, tokens])
    paged.step({0: 8})
    decoder.copy_blocks(paged._kv, paged._tables[0][:2], paged._tables[1][:2])
    paged.computed[1] = 8
    paged.step({0: 1, 1: 1})
    # Rows of one product may be summed in another order; a wrong block would be far off.
    torch.testing.assert_close(paged.logits[1][-1], paged.logits[0][-1], rtol=1e-5, atol=1e-5)


def test_block_size_in_bytes_is_what_the_cache_allocates(tmp_path: Path) -> None:
    decoder = build_decoder(tiny.save(tiny.make(tiny.configs()["qwen3"]), tmp_path), device="cpu")
    kv = decoder.allocate_kv(5, 16)
    # 3 layers, K and V, 2 KV heads of 24 dimensions, 4 bytes each.
    assert decoder.kv_bytes_per_block(16) == 16 * 3 * 2 * 2 * 24 * 4
    assert sum(t.nbytes for t in (*kv.keys, *kv.values)) == 6 * decoder.kv_bytes_per_block(16)
    assert kv.keys[0].shape == (6, 16, 2, 24)
