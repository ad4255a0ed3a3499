"""A model folder appears whole or not at all, whatever happens while it is built."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from weir.models.errors import ModelFolderError
from weir.models.folder import build_folder, check_model_folder


def write_model(folder: Path) -> None:
    (folder / "config.json").write_text("{}")
    (folder / "tokenizer.json").write_text("{}")
    save_file({"a": torch.zeros(2)}, folder / "model.safetensors")


def silent(message: str) -> None:
    """Progress that nobody reads."""


def in_a_process(target: Callable[..., None], *args: object) -> multiprocessing.process.BaseProcess:
    process = multiprocessing.get_context("spawn").Process(target=target, args=args)
    process.start()
    return process


def die_while_building(target: Path) -> None:
    def build(partial: Path) -> None:
        (partial / "config.json").write_text("{")
        os._exit(9)

    build_folder(target, build, silent)


def build_and_count(target: Path, log: Path) -> None:
    def build(partial: Path) -> None:
        with log.open("a") as file:
            file.write("built\n")
        write_model(partial)

    build_folder(target, build, silent)


def test_a_killed_build_leaves_no_folder_and_the_next_one_succeeds(tmp_path: Path) -> None:
    target = tmp_path / "model"
    process = in_a_process(die_while_building, target)
    process.join(60)
    assert process.exitcode == 9
    assert not target.exists()
    build_folder(target, write_model, silent)
    check_model_folder(target)
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["model"]


def test_two_builders_at_once_build_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    processes = [in_a_process(build_and_count, tmp_path / "model", log) for _ in range(2)]
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0]
    assert log.read_text() == "built\n"


def test_a_build_starts_from_nothing_unless_it_resumes(tmp_path: Path) -> None:
    target, seen = tmp_path / "model", []

    def fail(partial: Path) -> None:
        (partial / "config.json").write_text("{}")
        raise OSError("connection lost")

    def look(partial: Path) -> None:
        seen.append([path.name for path in partial.iterdir()])
        write_model(partial)

    for resume in (True, False):
        with pytest.raises(OSError, match="connection lost"):
            build_folder(target.with_name(str(resume)), fail, silent)
        build_folder(target.with_name(str(resume)), look, silent, resume=resume)
    assert seen == [["config.json"], []]


def test_a_build_that_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFolderError, match=r"no config\.json"):
        build_folder(tmp_path / "model", lambda partial: None, silent)
    assert not (tmp_path / "model").exists()


def test_an_incomplete_folder_is_replaced(tmp_path: Path) -> None:
    target = tmp_path / "model"
    target.mkdir()
    (target / "stray").write_text("of another model")
    build_folder(target, write_model, silent)
    check_model_folder(target)
    assert not (target / "stray").exists()


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_the_check_names_what_is_missing(name: str, tmp_path: Path) -> None:
    write_model(tmp_path)
    check_model_folder(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(ModelFolderError, match=f"has no {name}"):
        check_model_folder(tmp_path)


def test_the_check_finds_truncated_weights(tmp_path: Path) -> None:
    write_model(tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ModelFolderError, match="is damaged"):
        check_model_folder(tmp_path)
