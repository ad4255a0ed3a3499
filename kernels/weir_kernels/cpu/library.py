"""The C interface of the compiled library, typed. Mirrors csrc/model.h and csrc/library.cpp."""

from __future__ import annotations

import ctypes
import functools
import logging
from typing import Final

# First, because it loads its OpenMP runtime: the library then finds that one instead of bringing a second pool.
import torch  # noqa: F401

_log = logging.getLogger(__name__)

PHASES: Final = ("embed", "qkv", "kv_write", "attention", "output", "norm", "gate_up", "down", "lm_head")
MATRICES: Final = ("qkv", "output", "gate_up", "down", "lm_head")
VECTORS: Final = ("attention_norm", "mlp_norm", "qkv_bias", "output_bias", "q_norm", "k_norm", "final_norm")


class ModelShape(ctypes.Structure):
    """`weir::ModelShape`."""

    _fields_ = (
        ("num_layers", ctypes.c_int32),
        ("hidden_size", ctypes.c_int32),
        ("num_heads", ctypes.c_int32),
        ("num_kv_heads", ctypes.c_int32),
        ("head_dim", ctypes.c_int32),
        ("intermediate_size", ctypes.c_int32),
        ("vocab_size", ctypes.c_int32),
        ("qkv_bias", ctypes.c_int32),
        ("output_bias", ctypes.c_int32),
        ("qk_norm", ctypes.c_int32),
        ("rms_norm_eps", ctypes.c_float),
    )


class StepBatch(ctypes.Structure):
    """`weir::StepBatch`."""

    _fields_ = (
        ("token_ids", ctypes.c_void_p),
        ("positions", ctypes.c_void_p),
        ("slot_mapping", ctypes.c_void_p),
        ("cu_seqlens", ctypes.c_void_p),
        ("seq_lens", ctypes.c_void_p),
        ("block_tables", ctypes.c_void_p),
        ("logit_rows", ctypes.c_void_p),
        ("kv", ctypes.c_void_p),
        ("logits", ctypes.c_void_p),
        ("greedy_ids", ctypes.c_void_p),
        ("num_blocks", ctypes.c_int64),
        ("block_size", ctypes.c_int32),
        ("num_tokens", ctypes.c_int32),
        ("num_seqs", ctypes.c_int32),
        ("max_blocks", ctypes.c_int32),
        ("num_logit_rows", ctypes.c_int32),
    )


class Library:
    """The loaded library; every function has its argument types set."""

    def __init__(self, path: str) -> None:
        # CDLL lets go of the GIL for the length of a call.
        self._dll = ctypes.CDLL(path)
        handle, integer, size = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
        self.isa = self._function("weir_cpu_isa", ctypes.c_char_p, integer)
        self.create = self._function("weir_cpu_create", handle, ctypes.POINTER(ModelShape), ctypes.c_char_p)
        self.destroy = self._function("weir_cpu_destroy", None, handle)
        self.weight_bytes = self._function("weir_cpu_weight_bytes", ctypes.c_size_t, handle)
        self.kv_block_elements = self._function("weir_cpu_kv_block_elements", size, ctypes.POINTER(ModelShape), integer)
        self.matrix = self._function("weir_cpu_matrix", handle, handle, integer, integer)
        self.pack = self._function("weir_cpu_pack", None, handle, handle, size, size, size, integer)
        self.vector = self._function("weir_cpu_vector", handle, handle, integer, integer)
        self.set_tables = self._function("weir_cpu_set_tables", None, handle, handle, handle, handle, size)
        self.set_sliding_window = self._function("weir_cpu_set_sliding_window", None, handle, integer, ctypes.c_int32)
        self.step = self._function("weir_cpu_step", ctypes.c_char_p, handle, ctypes.POINTER(StepBatch), integer, handle)
        self.commit = self._function("weir_cpu_commit", None, handle, ctypes.c_size_t, integer)

    def _function(self, name: str, result: type | None, *arguments: type) -> ctypes._NamedFuncPointer:
        function = self._dll[name]
        function.restype = result
        function.argtypes = arguments
        return function


@functools.cache
def load_library() -> Library | None:
    """The library, built first if need be. None, after one warning, where it cannot be built or loaded."""
    # Here, so that `python -m weir_kernels.cpu.build` doesn't find itself imported already.
    from weir_kernels.cpu.build import BuildError, library_file

    try:
        with library_file() as path:
            return Library(path)
    except (BuildError, OSError) as error:
        _log.warning("CPU kernels are not available, torch computes instead (slower): %s", error)
        return None


def usable_isas() -> tuple[str, ...]:
    """The instruction sets that steps can use on this machine, best first; none where torch has to compute."""
    library = load_library()
    names: list[str] = []
    while library is not None and (name := library.isa(len(names))) is not None:
        names.append(name.decode())
    return tuple(names)


def available() -> str | None:
    """The instruction set the fused step uses here: "avx512_bf16", "avx512", "avx2", or None for the torch path."""
    return next(iter(usable_isas()), None)
