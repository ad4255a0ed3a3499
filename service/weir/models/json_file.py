"""Reading the text and JSON files of a model, which come from strangers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from weir.models.errors import ModelFolderError

# Tokenizers of the largest vocabularies take 35 MB.
MAX_BYTES = 256 * 2**20
_LFS_POINTER = b"version https://git-lfs.github.com/spec/"


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object. Raises ModelFolderError naming the file when it is missing, damaged or not an object."""
    text = read_text(path)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = "nested too deep" if isinstance(error, RecursionError) else error
        raise ModelFolderError(lfs_pointer(path) or f"cannot read {path}: {reason}") from None
    if not isinstance(value, dict):
        raise ModelFolderError(f"{path} holds a {type(value).__name__}, not a JSON object")
    return value


def read_text(path: Path) -> str:
    """Read a file of UTF-8. Raises ModelFolderError naming it when it is missing, too large or something else."""
    try:
        if not path.is_file():
            raise ModelFolderError(f"{path.parent} has no {path.name}")
        if (size := path.stat().st_size) > MAX_BYTES:
            raise ModelFolderError(f"{path} has {size} bytes; at most {MAX_BYTES} are read")
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ModelFolderError(lfs_pointer(path) or f"cannot read {path}: {error}") from None


def lfs_pointer(path: Path) -> str | None:
    """A sentence, if the file is what a clone without Git LFS leaves in its place."""
    try:
        with path.open("rb") as file:
            if file.read(len(_LFS_POINTER)) == _LFS_POINTER:
                return f"{path} is a Git LFS pointer, not the file itself; run `git lfs pull` in {path.parent}"
    except OSError:
        pass
    return None
