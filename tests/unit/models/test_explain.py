"""What is said of a path that is no model: what it is and what to do, in one sentence, by every command."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from weir.cli import main
from weir.engine.process import EngineClient
from weir.exit_codes import WRONG_USAGE
from weir.models.check import check_model
from weir.models.errors import ModelFolderError
from weir.models.folder import check_model_folder
from weir.models.json_file import read_json
from weir.models.tokenizer import Tokenizer

from tests.e2e.tiny_server import CONFIG
from tests.unit.models.test_folder import write_model

Make = Callable[[Path], Path]


def missing(path: Path) -> Path:
    return path / "nowhere"


def empty(path: Path) -> Path:
    return path


def with_files(*names: str, config: bool = False) -> Make:
    def make(path: Path) -> Path:
        for name in names:
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).touch()
        if config:
            (path / "config.json").write_text(json.dumps(CONFIG))
        return path

    return make


def one_file(name: str) -> Make:
    return lambda path: with_files(name)(path) / name


CASES: dict[str, tuple[Make, str]] = {
    "nothing": (missing, "nowhere does not exist; give a folder with config.json, tokenizer.json and safetensors"),
    "hub id": (
        lambda _: Path("org/name"),
        "org/name is not a folder; if it is a hub repository, run `weir fetch org",
    ),
    "not fetched": (lambda _: Path("models/no-such"), "does not exist; `weir fetch no-such` makes it"),
    "empty folder": (empty, "the folder is empty; `weir fetch` downloads a model"),
    "GGUF file": (
        one_file("m.Q4.gguf"),
        "is a GGUF file, which weir does not read; fetch the repository",
    ),
    "GGUF folder": (with_files("m.gguf", "README.md"), "m.gguf is GGUF, which weir does not read"),
    "weights file": (one_file("model.safetensors"), "is one file of a model; give the folder that it is in"),
    "pickled file": (one_file("pytorch_model.bin"), "is a pickled checkpoint, which weir does not read"),
    "another file": (one_file("notes.txt"), "is a file; give a folder with config.json"),
    "adapter": (
        with_files("adapter_config.json", "adapter_model.safetensors"),
        "it is an adapter, which",
    ),
    "hub cache": (
        with_files("snapshots/abc/config.json"),
        "it is the cache of a hub client; give a folder",
    ),
    "parent": (with_files("a/config.json"), "a folder within it may be meant: /"),
    "makers layout": (with_files("params.json", "consolidated.00.pth"), "it is in its maker's own layout"),
    "something": (with_files("notes.txt"), "it is not a model; give a folder with config.json"),
    ".bin": (
        with_files("pytorch_model.bin", config=True),
        "pytorch_model.bin is pickled, which weir does not read",
    ),
    "GGUF beside config": (with_files("m.gguf", config=True), "m.gguf is GGUF, which weir does not read"),
    "TensorFlow": (with_files("tf_model.h5", config=True), "tf_model.h5 is of another framework"),
    "no index": (with_files("model-00001-of-00002.safetensors", config=True), "without model.safetensors.index.json"),
    "other name": (with_files("weights.safetensors", config=True), "call the whole weights model.safetensors"),
    "only a config": (with_files(config=True), "finish its download, or compute with random weights"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_path_that_is_no_model_is_explained_in_a_sentence(name: str, tmp_path: Path) -> None:
    make, expected = CASES[name]
    with pytest.raises(ModelFolderError) as raised:
        check_model(make(tmp_path))
    message = str(raised.value)
    assert expected in message
    assert "\n" not in message


# A hub id is what fetch takes, and a config is all that size reads.
EVERYWHERE = ("nothing", "empty folder", "GGUF file")
SAID = {
    "serve": (*EVERYWHERE, "hub id", ".bin", "only a config"),
    "fetch": (*EVERYWHERE, ".bin", "only a config"),
    "size": (*EVERYWHERE, "hub id"),
}


@pytest.mark.parametrize(("command", "name"), [(command, name) for command, names in SAID.items() for name in names])
def test_every_command_says_it_with_the_exit_code_of_a_wrong_setting_and_starts_nothing(
    command: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`weir serve` opened its ports, started the engine, and ended after 5 s with "has no tokenizer.json"."""
    monkeypatch.setattr(EngineClient, "__init__", lambda *_: pytest.fail("the engine was started"))
    make, expected = CASES[name]
    folder = make(tmp_path)
    arguments = {
        "serve": ["serve", "--model", str(folder)],
        "fetch": ["fetch", str(folder), "--dest", str(tmp_path)],
        "size": ["size", str(folder)],
    }
    assert main(arguments[command]) == WRONG_USAGE
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1
    assert said[0].startswith(f"weir {command}: ")
    if (command, name) == ("fetch", "nothing"):
        expected = "is not a folder, not 'smollm2-135m-instruct' and not a hub id"
    assert expected in said[0]


@pytest.mark.parametrize("file", ["tokenizer.model", "vocab.json", "tekken.json"])
def test_a_tokenizer_of_an_older_form_is_told_how_to_convert(file: str, tmp_path: Path) -> None:
    write_model(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / file).touch()
    for check in (check_model_folder, Tokenizer):
        with pytest.raises(ModelFolderError, match=rf"no tokenizer\.json: {file} is an older form; convert it once"):
            check(tmp_path)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"{", "cannot read .*Expecting"),
        (b"\xff\xfe", "cannot read .*codec can't decode"),
        (b"[" * 100_000, "nested too deep"),
        (b"[1]", "holds a list, not a JSON object"),
        (b'{"a": ' + b"9" * 5000 + b"}", "cannot read .*Exceeds the limit"),
        (b"version https://git-lfs.github.com/spec/v1\n", "is a Git LFS pointer"),
    ],
)
def test_a_damaged_json_file_is_named_with_the_reason(content: bytes, reason: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ModelFolderError, match=reason):
        read_json(tmp_path / "config.json")


def test_a_json_file_that_is_a_pipe_or_far_too_large_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    with pytest.raises(ModelFolderError, match=r"has no pipe\.json"):
        read_json(tmp_path / "pipe.json")
    with (tmp_path / "large.json").open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(ModelFolderError, match="1099511627776 bytes; at most 268435456 are read"):
        read_json(tmp_path / "large.json")
