"""From a folder and settings to a decoder."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from weir.models.build import build_decoder, resolve_device
from weir.models.decoder import Decoder
from weir.models.errors import ModelFolderError
from weir.models.loader import load_weights
from weir.models.spec import ModelSpec
from weir_kernels.dispatch import KernelError, pick

from tests.unit.models import tiny
from tests.unit.models.paging import PagedSequences


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.save(tiny.make(tiny.configs()["qwen3"]), tmp_path_factory.mktemp("model"))


def logits(folder: Path, dtype: torch.dtype) -> torch.Tensor:
    cpu, spec = torch.device("cpu"), ModelSpec.from_folder(folder)
    decoder = Decoder(spec, load_weights(folder, spec, dtype, cpu), pick(cpu, "cpu"))
    paged = PagedSequences(decoder, [tiny.random_tokens(30)])
    paged.step({0: 20})
    for _ in range(10):
        paged.step({0: 1})
    return paged.all_logits(0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_computes_the_same_model(folder: Path, dtype: torch.dtype) -> None:
    actual, expected = logits(folder, dtype), logits(folder, torch.float32)
    assert actual.dtype == torch.float32
    # Rounding of weights and activations in 3 layers; an operation in a wrong order is off by more than half.
    assert (actual - expected).norm() < 20 * torch.finfo(dtype).eps * expected.norm()


def test_the_settings_name_dtype_device_and_kernels(folder: Path) -> None:
    decoder = build_decoder(folder, dtype="auto", device="cpu", kernels="reference")
    assert (decoder.dtype, decoder.device, decoder.kernels) == (torch.float32, torch.device("cpu"), "reference")
    assert build_decoder(folder, dtype="float16", device="cpu").dtype == torch.float16


def test_kernels_of_another_device_are_refused_before_weights_are_read(tmp_path: Path) -> None:
    tiny.configs()["qwen3"].save_pretrained(tmp_path)
    with pytest.raises(KernelError, match="triton kernels need a GPU"):
        build_decoder(tmp_path, device="cpu", kernels="triton")


def test_a_folder_without_weights_serves_only_dummy_weights(tmp_path: Path) -> None:
    tiny.configs()["qwen3"].save_pretrained(tmp_path)
    assert build_decoder(tmp_path, device="cpu", load_format="dummy").spec.vocab_size == tiny.VOCAB
    with pytest.raises(ModelFolderError, match=r"has no model\.safetensors"):
        build_decoder(tmp_path, device="cpu")


def test_auto_device_is_a_gpu_where_there_is_one() -> None:
    assert resolve_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
