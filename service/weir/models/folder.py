"""The one format the engine reads: a Hugging Face folder. Checking one, and putting one in place atomically."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from weir.models.checkpoint import find_checkpoint
from weir.models.errors import ModelError
from weir.models.explain import TOKENIZER, require_folder, require_tokenizer
from weir.models.json_file import read_json


def check_model_folder(folder: Path) -> None:
    """Raise a ModelError unless config.json, the tokenizer and whole safetensors files are there.

    Reads only the headers; a truncated weight file is found, a flipped bit inside it is not.
    """
    require_folder(folder)
    read_json(folder / "config.json")
    find_checkpoint(folder)
    require_tokenizer(folder)
    read_json(folder / TOKENIZER)


def is_model_folder(folder: Path) -> bool:
    """Whether `check_model_folder` finds nothing wrong."""
    try:
        check_model_folder(folder)
    except ModelError:
        return False
    return True


def build_folder(
    target: Path, build: Callable[[Path], None], progress: Callable[[str], None], *, resume: bool = False
) -> None:
    """Make `target` by calling `build(partial)`, so that it appears complete or not at all.

    `partial` is a hidden folder beside the target, renamed into place at the end; a kill at any moment leaves at most
    that folder, which the next run empties (or, with `resume`, hands to `build` as it is). Concurrent callers wait for
    each other and find the work done. Raises what `build` raises, and a ModelError when its result is unusable.
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
