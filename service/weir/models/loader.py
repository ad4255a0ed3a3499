"""Weights under the decoder's own names, from safetensors files or made up."""

from __future__ import annotations

import zlib
from contextlib import ExitStack
from math import prod
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import safe_open

from weir.models.checkpoint import find_checkpoint
from weir.models.errors import WeightsError
from weir.models.spec import ModelSpec
from weir.models.tensors import JoinedTensor, joined_tensors, num_parameters

Weights = dict[str, torch.Tensor]


class Report(Protocol):
    """Is told how far loading is: bytes done of a total, 0 where that is not known."""

    def __call__(self, what: str, done_bytes: int = 0, total_bytes: int = 0) -> None: ...


def no_report(what: str, done_bytes: int = 0, total_bytes: int = 0) -> None:
    """Tell nobody."""


_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
# A prime, so that tiling it over a matrix repeats no row.
_RANDOM_BLOCK = 1_048_573


def resolve_dtype(setting: str, spec: ModelSpec) -> torch.dtype:
    """`auto` is the checkpoint's own dtype; the others are float32, bfloat16 and float16."""
    return _DTYPES[spec.dtype if setting == "auto" else setting]


def load_weights(
    folder: str | Path, spec: ModelSpec, dtype: torch.dtype, device: torch.device, report: Report = no_report
) -> Weights:
    """Read a (sharded) safetensors checkpoint into the tensors that `joined_tensors` names.

    The headers are checked before any data is read. Raises WeightsError naming the tensors that are missing,
    unexpected, mis-shaped, quantised or not finite, and ModelFolderError for a missing or damaged file.
    """
    with ExitStack() as stack:
        stored: dict[str, Any] = {}
        for path in find_checkpoint(Path(folder), spec).files:
            file = stack.enter_context(safe_open(path, framework="pt", device="cpu"))
            stored |= dict.fromkeys(file.keys(), file)
        weights: Weights = {}
        done, total = 0, num_parameters(spec) * dtype.itemsize
        for tensor in joined_tensors(spec):
            report("reading weights", done, total)
            weights[tensor.name] = _read(tensor, stored, dtype, device)
            done += weights[tensor.name].nbytes
        report("reading weights", done, total)
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


def _read(tensor: JoinedTensor, stored: dict[str, Any], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    out = torch.empty(tensor.shape, dtype=dtype, device=device)
    row = 0
    for name, shape in tensor.parts:
        part = out[row : row + shape[0]]
        part.copy_(stored[name].get_tensor(name))
        _require_finite(name, part)
        row += shape[0]
    return out


def _require_finite(name: str, values: torch.Tensor) -> None:
    # NaN is the least and the largest of what it is among, so one pass at the speed of memory finds both kinds.
    least, largest = values.aminmax()
    if not (least.isfinite() and largest.isfinite()):
        dtype = str(values.dtype).removeprefix("torch.")
        count = int((~values.isfinite()).sum())
        raise WeightsError(f"{count} of {values.numel()} values of tensor {name} are not finite in {dtype}")


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
