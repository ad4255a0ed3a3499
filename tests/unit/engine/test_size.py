"""The arithmetic of `weir size`, by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from weir.engine.size import size_report

from tests.unit.models import tiny
from tests.unit.models.test_spec import LLAMA_3_1

GIB = 2**30


@pytest.fixture
def llama_2_7b(tmp_path: Path) -> Path:
    shape = {"num_key_value_heads": 32, "intermediate_size": 11008, "vocab_size": 32000, "rope_scaling": None}
    config = LLAMA_3_1 | shape | {"max_position_embeddings": 4096, "torch_dtype": "float16"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


def test_llama_2_7b_in_fp16(llama_2_7b: Path) -> None:
    report = size_report(llama_2_7b, memory_bytes=16 * GIB, block_size=16)
    # The published parameter count, and half a MiB a token, 16 KiB a layer.
    assert report.parameters == 6_738_415_616
    assert report.weights_bytes == 2 * 6_738_415_616
    assert report.kv_bytes_per_token == 512 * 1024
    assert report.kv_bytes_per_token_layer == 16 * 1024
    # 16 GiB - 13,476,831,232 B = 3,703,037,952 B; / 8 MiB a block = 441.4; a request of 4096 tokens caches 4095: 256.
    assert report.kv_blocks == 441
    assert report.kv_tokens == 7056
    assert report.full_requests == 1


def test_a_memory_smaller_than_the_weights_holds_nothing(llama_2_7b: Path) -> None:
    report = size_report(llama_2_7b, memory_bytes=GIB)
    assert (report.kv_memory_bytes, report.kv_tokens, report.full_requests) == (0, 0, 0)


def test_float32_doubles_the_bytes(llama_2_7b: Path) -> None:
    assert size_report(llama_2_7b, GIB, dtype="float32").kv_bytes_per_token == 2**20


def test_a_float8_kv_cache_takes_one_byte_a_number_and_leaves_the_weights_alone(llama_2_7b: Path) -> None:
    report = size_report(llama_2_7b, memory_bytes=16 * GIB, kv_cache_dtype="fp8_e4m3")
    assert report.kv_bytes_per_token == 256 * 1024
    assert report.weights_bytes == 2 * 6_738_415_616
    # 3,703,037,952 B / 4 MiB a block = 882.9.
    assert report.kv_blocks == 882


@pytest.mark.parametrize("name", list(tiny.configs()))
def test_the_parameter_count_is_that_of_transformers(name: str, tmp_path: Path) -> None:
    model = tiny.make(tiny.configs()[name])
    report = size_report(tiny.save(model, tmp_path), GIB)
    assert report.parameters == model.num_parameters()
