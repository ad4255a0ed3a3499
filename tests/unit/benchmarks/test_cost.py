"""The roofline's counts, worked out by hand for a model of one small layer."""

from __future__ import annotations

import pytest
from weir.engine.records import ChunkRecord, PhaseTimes, StepRecord
from weir.models.spec import ModelSpec

from benchmarks.cost import CostModel, StepCost
from benchmarks.machine import Peaks

# Hidden 8, 2 query heads and 1 KV head of 4, MLP of 16, vocabulary 10:
# QKV 8 * (8 + 2 * 4) = 128 weights, output 8 * 8 = 64, MLP 3 * 8 * 16 = 384, lm_head 10 * 8 = 80.
CONFIG = {
    "architectures": ["MistralForCausalLM"],
    "vocab_size": 10,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 4,
    "intermediate_size": 16,
    "max_position_embeddings": 64,
}


def cost_model(**changes: int) -> CostModel:
    return CostModel(ModelSpec.from_config(CONFIG | changes))


def record(*, decodes: tuple[ChunkRecord, ...] = (), prefills: tuple[ChunkRecord, ...] = ()) -> StepRecord:
    return StepRecord(
        **dict.fromkeys(StepRecord.__dataclass_fields__, 0)
        | {"phases": PhaseTimes(0, 0, 0, 0, 0), "decodes": decodes, "prefills": prefills}  # type: ignore[arg-type]
    )


def test_weights_are_counted_once_with_the_lm_head() -> None:
    assert cost_model().weight_bytes == 2 * (2 * (128 + 64 + 384) + 80)


def test_a_decode_reads_all_weights_and_its_context() -> None:
    step = cost_model().step(record(decodes=(ChunkRecord("a", 0, 9, 1),)), {"a": 5})
    products = 2 * (2 * (128 + 64 + 384) + 80)
    # Ten tokens are seen: QK and PV are 2 * 2 heads * 4 numbers each, in both layers.
    assert step.flops == products + 2 * (2 * 2 * 2 * 4) * 10
    # Nine tokens read and one written: 2 (K and V) * 1 head * 4 numbers * 2 bytes, in both layers.
    assert step.bytes == cost_model().weight_bytes + 2 * 16 * (9 + 1)


def test_a_chunk_that_does_not_end_its_prompt_needs_no_lm_head_and_no_last_mlp() -> None:
    step = cost_model().step(record(prefills=(ChunkRecord("a", 0, 0, 3),)), {"a": 5})
    assert step.flops == 2 * (2 * 128 * 3 + (64 + 384) * 3) + 2 * 32 * (1 + 2 + 3)
    assert step.bytes == cost_model().weight_bytes - 2 * 80 + 2 * 16 * 3


def test_the_chunk_that_ends_a_prompt_needs_them_for_one_row() -> None:
    middle = cost_model().step(record(prefills=(ChunkRecord("a", 0, 0, 3),)), {"a": 5})
    last = cost_model().step(record(prefills=(ChunkRecord("a", 0, 0, 3),)), {"a": 3})
    assert last.flops - middle.flops == 2 * (64 + 384 + 80)


def test_a_sliding_window_bounds_what_is_seen_and_read() -> None:
    windowed = cost_model(sliding_window=4).step(record(decodes=(ChunkRecord("a", 0, 9, 1),)), {"a": 5})
    whole = cost_model().step(record(decodes=(ChunkRecord("a", 0, 9, 1),)), {"a": 5})
    assert whole.flops - windowed.flops == 2 * 32 * (10 - 4)
    assert whole.bytes - windowed.bytes == 2 * 16 * (9 - 3)


def test_the_limit_is_the_scarcer_of_compute_and_memory() -> None:
    peaks = Peaks(flops=100.0, bytes_per_s=10.0)
    assert StepCost(flops=1000.0, bytes=20.0).least_s(peaks) == pytest.approx(10.0)
    assert StepCost(flops=1000.0, bytes=200.0).least_s(peaks) == pytest.approx(20.0)
