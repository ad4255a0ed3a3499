"""Weights under the decoder's own names, from safetensors files or made up."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from contextlib import ExitStack
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from weir.models.errors import ModelFolderError, WeightsError
from weir.models.folder import weight_files
from weir.models.spec import ModelSpec
from weir.models.tensors import JoinedTensor, joined_tensors

Weights = dict[str, torch.Tensor]

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_STORED_DTYPES = ("F32", "BF16", "F16")
_LISTED = 5
# A prime, so that tiling it over a matrix repeats no row.
_RANDOM_BLOCK = 1_048_573


def resolve_dtype(setting: str, spec: ModelSpec) -> torch.dtype:
    """`auto` is the checkpoint's own dtype; the others are float32, bfloat16 and float16."""
    return _DTYPES[spec.dtype if setting == "auto" else setting]


def load_weights(folder: str | Path, spec: ModelSpec, dtype: torch.dtype, device: torch.device) -> Weights:
    """Read a (sharded) safetensors checkpoint into the tensors that `joined_tensors` names.

    The headers are checked before any data is read. Raises WeightsError naming the tensors that are missing,
    unexpected, mis-shaped or quantised, and ModelFolderError for a missing or damaged file.
    """
    with ExitStack() as stack:
        stored: dict[str, Any] = {}
        for path in weight_files(Path(folder)):
            try:
                file = stack.enter_context(safe_open(path, framework="pt", device="cpu"))
            except (OSError, SafetensorError) as error:
                raise ModelFolderError(f"{path} is damaged: {error}") from None
            for name in file.keys():  # noqa: SIM118  # not a mapping: it cannot be iterated
                if name in stored:
                    raise WeightsError(f"tensor {name} is in more than one file of {folder}")
                stored[name] = file
        tensors = list(joined_tensors(spec))
        _check(tensors, stored, spec)
        weights = {tensor.name: _read(tensor, stored, dtype, device) for tensor in tensors}
    return _with_head(weights)


def dummy_weights(spec: ModelSpec, dtype: torch.dtype, device: torch.device) -> Weights:
    """Random weights, the same for the same spec and dtype, at memory speed. Norms are 1 and biases 0.

    Projections have standard deviation 1 / sqrt(in_features), so activations and logits stay near unit size at any
    depth.
    """
    generator = torch.Generator().manual_seed(0)
    block = torch.randn(_RANDOM_BLOCK, generator=generator).to(device=device, dtype=dtype)
    return _with_head({tensor.name: _dummy(tensor, block, spec) for tensor in joined_tensors(spec)})


def _with_head(weights: Weights) -> Weights:
    weights.setdefault("lm_head", weights["embed"])
    return weights


def _check(tensors: Iterable[JoinedTensor], stored: dict[str, Any], spec: ModelSpec) -> None:
    expected = {name: shape for tensor in tensors for name, shape in tensor.parts}
    problems = []
    if missing := [name for name in expected if name not in stored]:
        problems.append(f"missing {_list(missing)}")
    if extra := sorted(name for name in stored if name not in expected and not _is_redundant(name, spec)):
        problems.append(f"unexpected {_list(extra)}")
    for name, shape in expected.items():
        if name not in stored:
            continue
        entry = stored[name].get_slice(name)
        if tuple(entry.get_shape()) != shape:
            problems.append(f"{name} has shape {list(entry.get_shape())}, the config needs {list(shape)}")
        elif entry.get_dtype() not in _STORED_DTYPES:
            problems.append(f"{name} is stored as {entry.get_dtype()}, supported are {', '.join(_STORED_DTYPES)}")
    if problems:
        raise WeightsError(f"the checkpoint does not fit its config ({spec.architecture}): {_list(problems, '; ')}")


def _is_redundant(name: str, spec: ModelSpec) -> bool:
    # Old Llama checkpoints store the rotary frequencies; some with tied embeddings store the head a second time.
    return name.endswith(".rotary_emb.inv_freq") or (spec.tie_word_embeddings and name == "lm_head.weight")


def _list(items: list[str], separator: str = ", ") -> str:
    more = f"{separator}and {len(items) - _LISTED} more" if len(items) > _LISTED else ""
    return separator.join(items[:_LISTED]) + more


def _read(tensor: JoinedTensor, stored: dict[str, Any], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    out = torch.empty(tensor.shape, dtype=dtype, device=device)
    row = 0
    for name, shape in tensor.parts:
        out[row : row + shape[0]].copy_(stored[name].get_tensor(name))
        row += shape[0]
    return out


def _dummy(tensor: JoinedTensor, block: torch.Tensor, spec: ModelSpec) -> torch.Tensor:
    shape, kind = tensor.shape, tensor.name.rsplit(".", 1)[-1]
    if kind.endswith("norm"):
        return torch.ones(shape, dtype=block.dtype, device=block.device)
    if kind.endswith("bias"):
        return torch.zeros(shape, dtype=block.dtype, device=block.device)
    # Every tensor starts elsewhere in the block, at a place that depends only on its name.
    count = prod(shape)
    shifted = block.roll(-(zlib.crc32(tensor.name.encode()) % len(block)))[:count]
    # What is added to the residual stream is scaled down so that its variance does not grow with depth.
    damping = (2 * spec.num_layers) ** -0.5 if kind in ("o", "down") else 1.0
    scaled: torch.Tensor = shifted * (shape[-1] ** -0.5 * damping)
    return scaled.repeat(-(-count // len(scaled)))[:count].view(shape)
