"""The one format the engine reads: a Hugging Face folder. Checking one, and putting one in place atomically."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from weir.models.errors import ModelFolderError

SINGLE_FILE = "model.safetensors"
SHARD_INDEX = "model.safetensors.index.json"


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object. Raises ModelFolderError naming the file when it is missing, damaged or not an object."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelFolderError(f"{path.parent} has no {path.name}") from None
    except (OSError, ValueError) as error:
        raise ModelFolderError(f"cannot read {path}: {error}") from None
    if not isinstance(value, dict):
        raise ModelFolderError(f"{path} holds a {type(value).__name__}, not a JSON object")
    return value


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a checkpoint: model.safetensors, or the shards its index names.

    Raises ModelFolderError when there is neither, or when a shard is absent.
    """
    if (folder / SHARD_INDEX).is_file():
        index = read_json(folder / SHARD_INDEX)
        shards = index.get("weight_map")
        if not isinstance(shards, dict) or not shards:
            raise ModelFolderError(f"{folder / SHARD_INDEX} has no weight_map")
        files = [folder / name for name in sorted(set(shards.values()))]
    else:
        files = [folder / SINGLE_FILE]
    for file in files:
        if not file.is_file():
            raise ModelFolderError(f"{folder} has no {file.name}")
    return files


def check_model_folder(folder: Path) -> None:
    """Raise ModelFolderError unless config.json, the tokenizer and whole safetensors files are there.

    Reads only the headers; a truncated weight file is found, a flipped bit inside it is not.
    """
    if not folder.is_dir():
        raise ModelFolderError(f"{folder} is not a folder")
    read_json(folder / "config.json")
    read_json(folder / "tokenizer.json")
    for file in weight_files(folder):
        try:
            with safe_open(file, framework="numpy"):
                pass
        except (OSError, SafetensorError) as error:
            raise ModelFolderError(f"{file} is damaged: {error}") from None


def is_model_folder(folder: Path) -> bool:
    """Whether `check_model_folder` finds nothing wrong."""
    try:
        check_model_folder(folder)
    except ModelFolderError:
        return False
    return True


def build_folder(
    target: Path, build: Callable[[Path], None], progress: Callable[[str], None], *, resume: bool = False
) -> None:
    """Make `target` by calling `build(partial)`, so that it appears complete or not at all.

    `partial` is a hidden folder beside the target, renamed into place at the end; a kill at any moment leaves at most
    that folder, which the next run empties (or, with `resume`, hands to `build` as it is). Concurrent callers wait for
    each other and find the work done. Raises what `build` raises, and ModelFolderError when its result is unusable.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.partial")
    with _exclusive(target.with_name(f".{target.name}.lock"), progress):
        if is_model_folder(target):
            return
        if not resume:
            shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(exist_ok=True)
        build(partial)
        check_model_folder(partial)
        _flush(partial)
        _swap(partial, target)


@contextmanager
def _exclusive(lock: Path, progress: Callable[[str], None]) -> Iterator[None]:
    with lock.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress(f"another process holds {lock}; waiting for it")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _flush(folder: Path) -> None:
    for path in [*folder.rglob("*"), folder]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _swap(partial: Path, target: Path) -> None:
    # A folder that fails the check is replaced, not merged: its files may be of another model.
    if target.exists():
        old = target.with_name(f".{target.name}.old")
        shutil.rmtree(old, ignore_errors=True)
        target.rename(old)
        partial.rename(target)
        shutil.rmtree(old, ignore_errors=True)
    else:
        partial.rename(target)
    descriptor = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
