"""The arithmetic of `weir size`, by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from weir.config import ConfigError
from weir.engine.size import SizeReport, WhatFits, size_report
from weir.models.kv_cache import KvDtype

from tests.unit.models import tiny
from tests.unit.models.test_spec import LLAMA_3_1

GIB = 2**30


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    write_llama_2_7b(folder)
    return folder


@pytest.fixture
def llama_2_7b(tmp_path: Path) -> Path:
    write_llama_2_7b(tmp_path)
    return tmp_path


def write_llama_2_7b(folder: Path) -> None:
    shape = {"num_key_value_heads": 32, "intermediate_size": 11008, "vocab_size": 32000, "rope_scaling": None}
    config = LLAMA_3_1 | shape | {"max_position_embeddings": 4096, "torch_dtype": "float16"}
    (folder / "config.json").write_text(json.dumps(config))


def test_llama_2_7b_in_fp16(llama_2_7b: Path) -> None:
    report = size_report(llama_2_7b, memory_bytes=16 * GIB, block_size=16)
    # The published parameter count, and half a MiB a token, 16 KiB a layer.
    assert report.parameters == 6_738_415_616
    assert report.weights_bytes == 2 * 6_738_415_616
    assert report.kv_bytes_per_token == 512 * 1024
    assert report.kv_bytes_per_token_layer == 16 * 1024
    # 16 GiB - 13,476,831,232 B = 3,703,037,952 B; / 8 MiB a block = 441.4; a request of 4096 tokens caches 4095: 256.
    assert report.pool == report.whole
    assert (report.pool.bytes, report.pool.blocks, report.pool.tokens) == (3_703_037_952, 441, 7056)
    assert report.pool.full_requests == 1
    assert report.fits


def test_the_share_that_serve_takes_is_counted_beside_the_whole(llama_2_7b: Path) -> None:
    report = size_report(llama_2_7b, memory_bytes=32 * GIB, kv_memory_fraction=0.25)
    # 34,359,738,368 B - 13,476,831,232 B = 20,882,907,136 B; a quarter is 5,220,726,784 B: 622.4 blocks of 8 MiB.
    assert (report.pool.bytes, report.pool.blocks, report.pool.full_requests) == (5_220_726_784, 622, 2)
    assert (report.whole.blocks, report.whole.full_requests) == (2489, 9)


def test_a_memory_smaller_than_the_weights_holds_nothing_and_says_how_much_would(llama_2_7b: Path) -> None:
    report = size_report(llama_2_7b, memory_bytes=GIB)
    assert (report.left_bytes, report.pool.tokens, report.pool.full_requests) == (0, 0, 0)
    # The weights, and 256 blocks of 8 MiB for one request.
    assert report.what_fits == WhatFits(13_476_831_232 + 256 * 8 * 2**20 + 1, None, None, None, None)


def test_a_share_too_small_for_one_request_says_each_change_that_would_do(llama_2_7b: Path) -> None:
    report = size_report(llama_2_7b, memory_bytes=18 * GIB, kv_memory_fraction=0.25)
    # 19,327,352,832 B - 13,476,831,232 B = 5,850,521,600 B; a quarter holds 174 blocks, and a request needs 256: 0.37.
    assert report.what_fits is not None
    assert (report.what_fits.kv_memory_fraction, report.what_fits.max_model_len) == (0.37, 174 * 16)
    # In float8 a quarter holds 348 blocks.
    assert report.what_fits.kv_cache_dtype == "fp8_e4m3"
    assert report.what_fits.dtype is None


def test_a_float32_model_may_fit_in_bfloat16(llama_2_7b: Path) -> None:
    report = size_report(llama_2_7b, memory_bytes=24 * GIB, dtype="float32")
    assert report.what_fits is not None
    assert report.what_fits.dtype == "bfloat16"
    assert size_report(llama_2_7b, memory_bytes=24 * GIB, dtype="bfloat16").fits


@given(
    memory=st.integers(2**20, 2**42),
    fraction=st.integers(1, 100),
    block_size=st.sampled_from([16, 32, 256]),
    dtype=st.sampled_from(["float32", "bfloat16"]),
    kv_cache_dtype=st.sampled_from(["auto", "fp8_e4m3"]),
)
def test_whatever_is_said_to_fit_does(
    models: Path, memory: int, fraction: int, block_size: int, dtype: str, kv_cache_dtype: KvDtype
) -> None:
    def report(**changed: object) -> SizeReport:
        given_so: dict[str, object] = {
            "memory_bytes": memory,
            "kv_memory_fraction": fraction / 100,
            "block_size": block_size,
            "dtype": dtype,
            "kv_cache_dtype": kv_cache_dtype,
        }
        return size_report(models, **{**given_so, **changed})  # type: ignore[arg-type]

    if (what_fits := report().what_fits) is not None:
        for setting in ("memory_bytes", "kv_memory_fraction", "max_model_len", "dtype", "kv_cache_dtype"):
            if (value := getattr(what_fits, setting)) is not None:
                assert report(**{setting: value}).fits, setting
        assert not report(memory_bytes=what_fits.memory_bytes - 2 * block_size - 200).fits


def test_a_length_beyond_the_models_own_is_refused(llama_2_7b: Path) -> None:
    with pytest.raises(ConfigError, match="max-model-len 4097 is more than the model's own limit of 4096"):
        size_report(llama_2_7b, GIB, max_model_len=4097)
    assert size_report(llama_2_7b, 16 * GIB, max_model_len=1024).pool.full_requests == 6


def test_float32_doubles_the_bytes(llama_2_7b: Path) -> None:
    assert size_report(llama_2_7b, GIB, dtype="float32").kv_bytes_per_token == 2**20


def test_a_float8_kv_cache_takes_one_byte_a_number_and_leaves_the_weights_alone(llama_2_7b: Path) -> None:
    report = size_report(llama_2_7b, memory_bytes=16 * GIB, kv_cache_dtype="fp8_e4m3")
    assert report.kv_bytes_per_token == 256 * 1024
    assert report.weights_bytes == 2 * 6_738_415_616
    # 3,703,037,952 B / 4 MiB a block = 882.9.
    assert report.pool.blocks == 882


@pytest.mark.parametrize("name", list(tiny.configs()))
def test_the_parameter_count_is_that_of_transformers(name: str, tmp_path: Path) -> None:
    model = tiny.make(tiny.configs()[name])
    report = size_report(tiny.save(model, tmp_path), GIB)
    assert report.parameters == model.num_parameters()
