"""Which files hold a model's weights, and whether they are whole: read from their headers, in milliseconds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from safetensors import SafetensorError, safe_open

from weir.models.errors import ModelError, ModelFolderError, WeightsError
from weir.models.explain import without_weights
from weir.models.json_file import lfs_pointer, read_json
from weir.models.spec import ModelSpec
from weir.models.tensors import joined_tensors

SINGLE_FILE = "model.safetensors"
SHARD_INDEX = "model.safetensors.index.json"
_STORED_DTYPES = ("F32", "BF16", "F16")
_LISTED = 5


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """files: where the tensors are. note: which of two sets of files this is and why; None where there is one."""

    files: tuple[Path, ...]
    note: str | None = None


@dataclass(frozen=True, slots=True)
class _Stored:
    shape: tuple[int, ...]
    dtype: str


def find_checkpoint(folder: Path, spec: ModelSpec | None = None) -> Checkpoint:
    """The weights of a folder: model.safetensors, or the shards that its index names, whichever is whole.

    Where both are, model.safetensors, as in transformers: they may be of different trainings, and one of them has been
    forgotten. Whole: every file can be opened and has its full length, and with `spec` every tensor is there in its
    shape. Raises ModelFolderError and WeightsError with what is missing.
    """
    single, sharded = folder / SINGLE_FILE, folder / SHARD_INDEX
    has_single, has_shards = single.is_file(), sharded.is_file()
    if not has_single and not has_shards:
        raise ModelFolderError(f"{folder} has no {SINGLE_FILE}: {without_weights(folder)}")
    if not has_shards:
        return Checkpoint(_whole((single,), spec))
    if not has_single:
        return Checkpoint(_whole(_shards(sharded), spec))
    shards, shards_fault = _try(sharded, spec)
    if single in shards:
        return Checkpoint(shards)
    try:
        files = _whole((single,), spec)
    except ModelError as error:
        if shards_fault is not None:
            raise WeightsError(f"{error}; nor are the shards whole: {shards_fault}") from None
        return Checkpoint(shards, f"the weights are the {len(shards)} shards of {sharded.name}: {error}")
    if shards_fault is not None:
        return Checkpoint(files, f"the weights are {single}; {sharded.name} beside it is left over: {shards_fault}")
    return Checkpoint(
        files,
        f"the weights are {single}, as transformers would choose; the {len(shards)} shards of {sharded.name} beside it "
        "are whole too and are not used: remove those that are out of date",
    )


def _try(index: Path, spec: ModelSpec | None) -> tuple[tuple[Path, ...], ModelError | None]:
    try:
        return _whole(_shards(index), spec), None
    except ModelError as error:
        return (), error


def _shards(index: Path) -> tuple[Path, ...]:
    names = read_json(index).get("weight_map")
    if not isinstance(names, dict) or not names:
        raise ModelFolderError(f"{index} has no weight_map")
    for tensor, name in names.items():
        if not isinstance(name, str) or not _is_within(name):
            raise ModelFolderError(f"{index}: {tensor} is in {name!r}, which is no file of the folder")
    return tuple(index.parent / name for name in sorted(set(names.values())))


def _is_within(name: str) -> bool:
    path = PurePosixPath(name)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts and "\0" not in name


def _whole(files: tuple[Path, ...], spec: ModelSpec | None) -> tuple[Path, ...]:
    stored: dict[str, _Stored] = {}
    for file in files:
        _require_file(file)
        for name, entry in _header(file).items():
            if name in stored:
                raise WeightsError(f"tensor {name} is in more than one file of {file.parent}")
            stored[name] = entry
    if spec is not None:
        _check(stored, spec)
    return files


def _require_file(file: Path) -> None:
    try:
        if not file.is_file():
            raise ModelFolderError(f"{file.parent} has no {file.name}")
    except OSError as error:  # a name that is too long
        raise ModelFolderError(f"cannot read {file}: {error.strerror}") from None


def _header(file: Path) -> dict[str, _Stored]:
    try:
        with safe_open(file, framework="numpy") as opened:
            slices = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118  # not a mapping
            return {name: _Stored(tuple(entry.get_shape()), entry.get_dtype()) for name, entry in slices.items()}
    except (OSError, SafetensorError) as error:
        raise ModelFolderError(lfs_pointer(file) or f"{file} is damaged: {error}") from None


def _check(stored: dict[str, _Stored], spec: ModelSpec) -> None:
    expected = {name: shape for tensor in joined_tensors(spec) for name, shape in tensor.parts}
    problems = []
    if missing := [name for name in expected if name not in stored]:
        problems.append(f"missing {_list(missing)}")
    if extra := sorted(name for name in stored if name not in expected and not _is_redundant(name, spec)):
        problems.append(f"unexpected {_list(extra)}")
    for name, shape in expected.items():
        if name not in stored:
            continue
        entry = stored[name]
        if entry.shape != shape:
            problems.append(f"{name} has shape {list(entry.shape)}, the config needs {list(shape)}")
        elif entry.dtype not in _STORED_DTYPES:
            problems.append(f"{name} is stored as {entry.dtype}, supported are {', '.join(_STORED_DTYPES)}")
    if problems:
        raise WeightsError(f"the checkpoint does not fit its config ({spec.architecture}): {_list(problems, '; ')}")


def _is_redundant(name: str, spec: ModelSpec) -> bool:
    # Old Llama checkpoints store the rotary frequencies; some with tied embeddings store the head a second time.
    return name.endswith(".rotary_emb.inv_freq") or (spec.tie_word_embeddings and name == "lm_head.weight")


def _list(items: Iterable[str], separator: str = ", ") -> str:
    items = list(items)
    more = f"{separator}and {len(items) - _LISTED} more" if len(items) > _LISTED else ""
    return separator.join(items[:_LISTED]) + more
