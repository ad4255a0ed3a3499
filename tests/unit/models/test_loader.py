"""Checkpoints to weights: sharded or not, and every way that they can be wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from weir.models.build import build_decoder
from weir.models.errors import ModelFolderError, WeightsError
from weir.models.loader import load_weights, resolve_dtype
from weir.models.spec import ModelSpec

from tests.unit.models import tiny
from tests.unit.models.paging import PagedSequences

CPU = torch.device("cpu")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return tiny.save(tiny.make(tiny.configs()["llama2"]), tmp_path / "model")


def load(folder: Path) -> dict[str, torch.Tensor]:
    return load_weights(folder, ModelSpec.from_folder(folder), torch.float32, CPU)


def edit(folder: Path, **changes: torch.Tensor | None) -> None:
    """Replace, add or (None) remove tensors; `__` in a name stands for a dot."""
    tensors = load_file(folder / "model.safetensors")
    for name, value in changes.items():
        if value is None:
            del tensors[name.replace("__", ".")]
        else:
            tensors[name.replace("__", ".")] = value
    save_file(tensors, folder / "model.safetensors")


def test_projections_are_stacked_in_order(checkpoint: Path) -> None:
    weights, stored = load(checkpoint), load_file(checkpoint / "model.safetensors")
    attention = "model.layers.1.self_attn."
    parts = [stored[f"{attention}{name}_proj.weight"] for name in "qkv"]
    assert torch.equal(weights["layers.1.qkv"], torch.cat(parts))
    mlp = [stored[f"model.layers.2.mlp.{name}_proj.weight"] for name in ("gate", "up")]
    assert torch.equal(weights["layers.2.gate_up"], torch.cat(mlp))


def test_a_sharded_checkpoint_loads_as_the_single_file_does(tmp_path: Path) -> None:
    model = tiny.make(tiny.configs()["qwen2"])
    single = tiny.save(model, tmp_path / "single")
    sharded = tiny.save(model, tmp_path / "sharded", max_shard_size="20KB")
    assert len(list(sharded.glob("model-*.safetensors"))) > 2
    expected, actual = load(single), load(sharded)
    assert actual.keys() == expected.keys()
    assert all(torch.equal(actual[name], expected[name]) for name in expected)


def test_tied_embeddings_are_one_tensor(tmp_path: Path) -> None:
    weights = load(tiny.save(tiny.make(tiny.configs()["smollm2"]), tmp_path))
    assert weights["lm_head"] is weights["embed"]


def test_weights_are_converted_to_the_wanted_dtype(checkpoint: Path) -> None:
    spec = ModelSpec.from_folder(checkpoint)
    weights = load_weights(checkpoint, spec, torch.bfloat16, CPU)
    stored = load_file(checkpoint / "model.safetensors")
    assert torch.equal(weights["embed"], stored["model.embed_tokens.weight"].bfloat16())
    assert {tensor.dtype for tensor in weights.values()} == {torch.bfloat16}


def test_auto_dtype_is_the_checkpoints_own(checkpoint: Path) -> None:
    spec = ModelSpec.from_folder(checkpoint)
    assert resolve_dtype("auto", spec) == torch.float32
    assert resolve_dtype("float16", spec) == torch.float16


def test_a_missing_tensor_is_named(checkpoint: Path) -> None:
    edit(checkpoint, model__layers__1__mlp__up_proj__weight=None)
    with pytest.raises(WeightsError, match=r"missing model\.layers\.1\.mlp\.up_proj\.weight"):
        load(checkpoint)


def test_an_unexpected_tensor_is_named(checkpoint: Path) -> None:
    edit(checkpoint, model__layers__0__self_attn__q_proj__bias=torch.zeros(48))
    with pytest.raises(WeightsError, match=r"unexpected model\.layers\.0\.self_attn\.q_proj\.bias"):
        load(checkpoint)


def test_a_mis_shaped_tensor_is_named_with_both_shapes(checkpoint: Path) -> None:
    edit(checkpoint, model__norm__weight=torch.zeros(47))
    with pytest.raises(WeightsError, match=r"model\.norm\.weight has shape \[47\], the config needs \[48\]"):
        load(checkpoint)


def test_a_quantised_tensor_is_named(checkpoint: Path) -> None:
    edit(checkpoint, model__norm__weight=torch.zeros(48, dtype=torch.int8))
    with pytest.raises(WeightsError, match=r"model\.norm\.weight is stored as I8"):
        load(checkpoint)


def test_many_missing_tensors_give_a_short_message(checkpoint: Path) -> None:
    save_file({"model.norm.weight": torch.zeros(48)}, checkpoint / "model.safetensors")
    # embeddings, head, 9 tensors in each of 3 layers; five are listed.
    with pytest.raises(WeightsError, match=r"missing model\.embed_tokens\.weight.* and 24 more$"):
        load(checkpoint)


def test_an_untied_model_without_a_head_is_refused(checkpoint: Path) -> None:
    edit(checkpoint, lm_head__weight=None)
    with pytest.raises(WeightsError, match=r"missing lm_head\.weight"):
        load(checkpoint)


def test_tensors_that_change_nothing_are_ignored(tmp_path: Path) -> None:
    folder = tiny.save(tiny.make(tiny.configs()["smollm2"]), tmp_path)
    expected = load(folder)
    edit(
        folder,
        lm_head__weight=torch.zeros(tiny.VOCAB, 48),
        model__layers__0__self_attn__rotary_emb__inv_freq=torch.zeros(8),
    )
    actual = load(folder)
    assert all(torch.equal(actual[name], expected[name]) for name in expected)


def test_a_tensor_in_two_shards_is_refused(checkpoint: Path) -> None:
    tensors = load_file(checkpoint / "model.safetensors")
    save_file(tensors, checkpoint / "a.safetensors")
    save_file({"model.norm.weight": tensors["model.norm.weight"]}, checkpoint / "b.safetensors")
    index = dict.fromkeys(tensors, "a.safetensors") | {"model.norm.weight": "b.safetensors"}
    (checkpoint / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    (checkpoint / "model.safetensors").unlink()
    with pytest.raises(WeightsError, match=r"model\.norm\.weight is in more than one file"):
        load(checkpoint)


def test_a_missing_shard_is_named(checkpoint: Path) -> None:
    index = {"weight_map": {"model.norm.weight": "model-00002-of-00002.safetensors"}}
    (checkpoint / "model.safetensors.index.json").write_text(json.dumps(index))
    (checkpoint / "model.safetensors").unlink()
    with pytest.raises(ModelFolderError, match=r"no model-00002-of-00002\.safetensors"):
        load(checkpoint)


def test_a_truncated_file_is_named(checkpoint: Path) -> None:
    path = checkpoint / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(ModelFolderError, match=r"model\.safetensors is damaged"):
        load(checkpoint)


def test_dummy_weights_of_a_deep_model_are_reproducible_and_give_logits_of_unit_size(tmp_path: Path) -> None:
    config = tiny.configs()["qwen3"]
    config.num_hidden_layers, config.layer_types = 40, ["full_attention"] * 40
    config.save_pretrained(tmp_path)
    tokens = tiny.random_tokens(64)
    logits = []
    for _ in range(2):
        decoder = build_decoder(tmp_path, device="cpu", load_format="dummy", dtype="float32")
        paged = PagedSequences(decoder, [tokens])
        paged.step({0: 64})
        logits.append(paged.all_logits(0))
    assert torch.equal(logits[0], logits[1])
    assert logits[0].isfinite().all()
    assert 0.3 < logits[0].std() < 3
