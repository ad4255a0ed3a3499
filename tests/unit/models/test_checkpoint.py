"""Which of two sets of weights a folder means, and what is said of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.models.auto.modeling_auto import AutoModelForCausalLM
from weir.models.check import check_model
from weir.models.checkpoint import SHARD_INDEX, SINGLE_FILE, find_checkpoint
from weir.models.errors import ModelError, ModelFolderError, WeightsError
from weir.models.loader import load_weights
from weir.models.spec import ModelSpec

from tests.unit.models import tiny, vocabularies


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The old weights in shards, and new ones, which differ by one, in a single file beside them."""
    model = tiny.make(tiny.configs()["llama2"])
    tiny.save(model, tmp_path / "model", max_shard_size="30KB")
    tiny.save(model, tmp_path / "single")
    tensors = load_file(tmp_path / "single" / SINGLE_FILE)
    save_file({name: tensor + 1 for name, tensor in tensors.items()}, tmp_path / "model" / SINGLE_FILE)
    assert len(shards(tmp_path / "model")) > 2
    return tmp_path / "model"


def shards(folder: Path) -> list[Path]:
    return sorted(folder.glob("model-*.safetensors"))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def drop_tensors(path: Path) -> None:
    save_file({"model.norm.weight": torch.zeros(48)}, path)


def note_of(folder: Path) -> str:
    note = find_checkpoint(folder, ModelSpec.from_folder(folder)).note
    assert note is not None
    return note


def load(folder: Path) -> torch.Tensor:
    spec = ModelSpec.from_folder(folder)
    return load_weights(folder, spec, torch.float32, torch.device("cpu"))["final_norm"]


@pytest.mark.parametrize("fault", [Path.unlink, cut, drop_tensors])
def test_a_whole_file_beside_shards_that_are_not_whole_is_used_and_said(folder: Path, fault: Any) -> None:
    """An index whose shards were gone made a folder unusable that transformers loads."""
    fault(shards(folder)[0])
    assert find_checkpoint(folder, ModelSpec.from_folder(folder)).files == (folder / SINGLE_FILE,)
    assert note_of(folder).startswith(f"the weights are {folder / SINGLE_FILE}; {SHARD_INDEX} beside it is left over: ")
    expected = AutoModelForCausalLM.from_pretrained(folder).model.norm.weight
    assert torch.equal(load(folder), expected)


def test_of_two_whole_sets_the_one_that_transformers_loads_is_used_and_said(folder: Path) -> None:
    """The old shards were served, in silence."""
    assert find_checkpoint(folder, ModelSpec.from_folder(folder)).files == (folder / SINGLE_FILE,)
    assert note_of(folder).endswith("are whole too and are not used: remove those that are out of date")
    expected = AutoModelForCausalLM.from_pretrained(folder).model.norm.weight
    assert torch.equal(load(folder), expected)


@pytest.mark.parametrize("fault", [cut, drop_tensors])
def test_whole_shards_beside_a_file_that_is_not_whole_are_used_and_said(folder: Path, fault: Any) -> None:
    old = load_file(folder / SINGLE_FILE)["model.norm.weight"] - 1
    fault(folder / SINGLE_FILE)
    assert find_checkpoint(folder, ModelSpec.from_folder(folder)).files == tuple(shards(folder))
    assert note_of(folder).startswith(f"the weights are the {len(shards(folder))} shards of {SHARD_INDEX}: ")
    assert torch.allclose(load(folder), old)


def test_two_sets_of_which_none_is_whole_are_refused_with_both_reasons(folder: Path) -> None:
    cut(folder / SINGLE_FILE)
    missing = shards(folder)[0]
    missing.unlink()
    with pytest.raises(
        WeightsError, match=rf"{SINGLE_FILE} is damaged.*; nor are the shards whole: .*no {missing.name}"
    ):
        find_checkpoint(folder, ModelSpec.from_folder(folder))


def test_an_index_that_names_the_single_file_is_no_second_set(folder: Path) -> None:
    names = load_file(folder / SINGLE_FILE)
    (folder / SHARD_INDEX).write_text(json.dumps({"weight_map": dict.fromkeys(names, SINGLE_FILE)}))
    assert find_checkpoint(folder, ModelSpec.from_folder(folder)) == find_checkpoint(folder)
    assert find_checkpoint(folder).note is None


@pytest.mark.parametrize("name", [7, None, "", "../other.safetensors", "/etc/passwd", ["a"], "a\0b"], ids=repr)
def test_an_index_that_names_no_file_of_the_folder_is_refused_by_tensor(folder: Path, name: object) -> None:
    """An integer was a TypeError."""
    (folder / SINGLE_FILE).unlink()
    (folder / SHARD_INDEX).write_text(json.dumps({"weight_map": {"model.norm.weight": name}}))
    with pytest.raises(ModelFolderError, match=r"model\.norm\.weight is in .*, which is no file of the folder"):
        find_checkpoint(folder)


@pytest.mark.parametrize("index", [{}, {"weight_map": {}}, {"weight_map": 3}, {"weight_map": ["a"]}])
def test_an_index_without_a_map_is_refused(folder: Path, index: dict[str, object]) -> None:
    (folder / SINGLE_FILE).unlink()
    (folder / SHARD_INDEX).write_text(json.dumps(index))
    with pytest.raises(ModelFolderError, match="has no weight_map"):
        find_checkpoint(folder)


def test_the_choice_is_logged_before_anything_is_loaded(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    vocabularies.save(vocabularies.byte_level(), folder)
    check_model(folder)
    assert [record.levelname for record in caplog.records if "as transformers would choose" in record.message] == [
        "WARNING"
    ]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_weights_that_are_not_finite_are_refused_by_tensor(folder: Path, value: float) -> None:
    """A model of NaN answered token 0 with log-probability 0, and was healthy."""
    tensors = load_file(folder / SINGLE_FILE)
    tensors["model.layers.1.mlp.up_proj.weight"][3, 5] = value
    tensors["model.layers.1.mlp.up_proj.weight"][7, 0] = value
    save_file(tensors, folder / SINGLE_FILE)
    expected = r"2 of 3840 values of tensor model\.layers\.1\.mlp\.up_proj\.weight are not finite in float32"
    with pytest.raises(WeightsError, match=expected):
        load(folder)


def test_weights_that_are_too_large_for_the_chosen_dtype_are_refused(folder: Path) -> None:
    spec = ModelSpec.from_folder(folder)
    tensors = load_file(folder / SINGLE_FILE)
    tensors["model.norm.weight"][0] = 1e5
    save_file(tensors, folder / SINGLE_FILE)
    load(folder)
    with pytest.raises(WeightsError, match=r"1 of 48 values of tensor model\.norm\.weight are not finite in float16"):
        load_weights(folder, spec, torch.float16, torch.device("cpu"))


def test_a_git_lfs_pointer_is_called_one(folder: Path) -> None:
    (folder / SHARD_INDEX).unlink()
    (folder / SINGLE_FILE).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    with pytest.raises(ModelError, match="is a Git LFS pointer, not the file itself; run `git lfs pull`"):
        find_checkpoint(folder)
