"""What a path is that is no model folder, and what to do about it: one sentence each."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from weir.models.errors import ModelFolderError

HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
# Where `weir fetch` puts what it downloads.
FETCHED = "models"
TOKENIZER = "tokenizer.json"
_WANTED = "a folder with config.json, tokenizer.json and safetensors files"
_PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt")
_OTHER_FRAMEWORKS = ("*.h5", "*.msgpack", "*.onnx", "*.npz")


def require_folder(path: Path) -> None:
    """Raise ModelFolderError, with what the path is instead, unless it is a folder with a config.json."""
    try:
        if not path.is_dir():
            raise ModelFolderError(_of_file(path) if path.exists() else _of_nothing(path))
        if not (path / "config.json").is_file():
            raise ModelFolderError(f"{path} has no config.json: {_of_folder(path)}")
    except OSError as error:
        raise ModelFolderError(f"cannot read {path}: {error}") from None


def require_tokenizer(folder: Path) -> None:
    """Raise ModelFolderError, with how to get one, unless the folder has a tokenizer.json."""
    if (folder / TOKENIZER).is_file():
        return
    if found := _names(folder, ["tokenizer.model", "vocab.json", "tiktoken.model", "*.tiktoken", "tekken.json"]):
        way = f"{found} is an older form; convert it once with transformers: "
        way += "AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
    else:
        way = "fetch it from the repository of the model, or of the one that it was trained from"
    raise ModelFolderError(f"{folder} has no {TOKENIZER}: {way}")


def without_weights(folder: Path) -> str:
    """Why a folder with a config has no weights that can be read, and how to get them."""
    if found := _names(folder, ["*.gguf"]):
        return f"{found} is GGUF, which weir does not read; fetch the repository that it was made from"
    if found := _names(folder, _PICKLED):
        return (
            f"{found} is pickled, which weir does not read because it can run code; convert it once with transformers: "
            f"AutoModelForCausalLM.from_pretrained(folder).save_pretrained(folder)"
        )
    if found := _names(folder, _OTHER_FRAMEWORKS):
        return f"{found} is of another framework; save the model with transformers in PyTorch"
    if found := _names(folder, ["consolidated*.safetensors"]):
        return f"{found} is in its maker's own layout; fetch the files for transformers of the same model"
    if found := _names(folder, ["model-*.safetensors"]):
        return f"{found} is there without model.safetensors.index.json, which says what is in it; fetch that too"
    if found := _names(folder, ["*.safetensors"]):
        return f"{found} has another name; call the whole weights model.safetensors"
    return "finish its download, or compute with random weights (--load-format dummy)"


def _of_nothing(path: Path) -> str:
    name = str(path)
    if not HUB_ID.fullmatch(name):
        return f"{name} does not exist; give {_WANTED}"
    if path.parts[0] == FETCHED:
        return f"{name} does not exist; `weir fetch {path.name}` makes it, if that is a model's name"
    if (Path(FETCHED) / name).is_dir():
        return f"{name} is not a folder, but {FETCHED}/{name} is"
    return f"{name} is not a folder; if it is a hub repository, run `weir fetch {name}` and use {FETCHED}/{name}"


def _of_file(path: Path) -> str:
    match path.suffix.lower():
        case ".gguf":
            return f"{path} is a GGUF file, which weir does not read; fetch the repository that it was made from"
        case ".safetensors" | ".json":
            return f"{path} is one file of a model; give the folder that it is in"
        case ".bin" | ".pt" | ".pth" | ".ckpt":
            return f"{path} is a pickled checkpoint, which weir does not read; give {_WANTED}"
        case _:
            return f"{path} is a file; give {_WANTED}"


def _of_folder(path: Path) -> str:
    if not any(path.iterdir()):
        return "the folder is empty; `weir fetch` downloads a model"
    if (path / "snapshots").is_dir():
        snapshots = [str(found) for found in sorted((path / "snapshots").iterdir())]
        return f"it is the cache of a hub client; give a folder within it: {_listed(snapshots)}"
    if (path / "adapter_config.json").is_file():
        return "it is an adapter, which weir does not load; merge it into its model and save that"
    if found := _names(path, ["*.gguf"]):
        return f"{found} is GGUF, which weir does not read; fetch the repository that it was made from"
    if (path / "params.json").is_file():
        return "it is in its maker's own layout; fetch the files for transformers of the same model"
    within = [str(found.parent) for found in sorted(path.glob("*/config.json"))]
    if within:
        return f"a folder within it may be meant: {_listed(within)}"
    return f"it is not a model; give {_WANTED}"


def _names(folder: Path, patterns: Iterable[str]) -> str:
    return _listed(sorted({path.name for pattern in patterns for path in folder.glob(pattern)}))


def _listed(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
