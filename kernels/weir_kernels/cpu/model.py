"""A model whose weights are packed for the fused step, and the step itself."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch

from weir_kernels.cpu.library import MATRICES, PHASES, VECTORS, Library, ModelShape, StepBatch, available, load_library
from weir_kernels.ragged import RaggedBatch

PhaseClock: TypeAlias = "ctypes.Array[ctypes.c_double]"

GROUP_TOKENS = 16
MAX_HEAD_DIM = 512


class CpuKernelError(RuntimeError):
    """The fused step cannot run; the message says why."""


@dataclass(frozen=True, slots=True)
class CpuModelShape:
    """The sizes of a decoder. intermediate_size is I, of which gate and up have I outputs each."""

    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    rms_norm_eps: float
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False
    sliding_window: tuple[int | None, ...] = ()

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"num_heads ({self.num_heads}) is not a multiple of num_kv_heads ({self.num_kv_heads})")
        if self.head_dim % 2 or self.head_dim > MAX_HEAD_DIM:
            raise ValueError(f"head_dim ({self.head_dim}) must be even and at most {MAX_HEAD_DIM}")


@dataclass(frozen=True, slots=True)
class CpuKvCache:
    """The paged KV cache in the order of csrc/model.h.

    data: [num_layers, num_blocks + 1, elements of a block] bf16; block 0 is the null block, ids 1..num_blocks are
    for use.
    """

    data: torch.Tensor
    num_blocks: int
    block_size: int

    def copy_blocks(self, source: Sequence[int], target: Sequence[int]) -> None:
        """Copy whole blocks within every layer, source[i] to target[i]. No target may also be a source."""
        for from_block, to_block in zip(source, target, strict=True):
            self.data[:, to_block].copy_(self.data[:, from_block])


class CpuModel:
    """Packed weights and the step over them. Thread count and instruction set are fixed when it is made.

    Weights go in with `pack` and `set_vector`, in any order, before the first step. Steps may not overlap.
    """

    def __init__(self, shape: CpuModelShape, threads: int, isa: str | None = None) -> None:
        """isa: one of the sets this machine has; default: the best. Raises CpuKernelError when there is none."""
        library = load_library()
        self.isa = isa or available()
        if library is None or self.isa is None:
            raise CpuKernelError("no CPU kernels for this machine")
        self.shape = shape
        self.threads = threads
        self._library: Library = library
        self._c_shape = ModelShape(
            shape.num_layers,
            shape.hidden_size,
            shape.num_heads,
            shape.num_kv_heads,
            shape.head_dim,
            shape.intermediate_size,
            shape.vocab_size,
            shape.qkv_bias,
            shape.output_bias,
            shape.qk_norm,
            shape.rms_norm_eps,
        )
        self._engine = library.create(self._c_shape, self.isa.encode())
        if self._engine is None:
            raise CpuKernelError(f"this machine has no {self.isa}, or no memory for the packed weights")
        for layer, window in enumerate(shape.sliding_window):
            library.set_sliding_window(self._engine, layer, window or 0)
        self._batch = StepBatch()
        self._logits = torch.empty((0, shape.vocab_size))
        self._tables: tuple[torch.Tensor | None, ...] = ()

    def __del__(self) -> None:
        if getattr(self, "_engine", None) is not None:
            self._library.destroy(self._engine)
            self._engine = None

    @property
    def weight_bytes(self) -> int:
        """Bytes of the packed weights."""
        return int(self._library.weight_bytes(self._engine))

    def pack(self, matrix: str, layer: int, rows: torch.Tensor, first_output: int = 0) -> None:
        """Copy rows [n, in_features] into outputs first_output.., a multiple of 16, of qkv, output, down or lm_head."""
        self._pack(matrix, layer, rows, first_output, GROUP_TOKENS)

    def pack_gate_up(self, layer: int, gate_up: torch.Tensor) -> None:
        """gate_up: [2 * I, H], the gate in the first half. Packed so that a gate and its up are computed together."""
        gate, up = gate_up.chunk(2)
        self._pack("gate_up", layer, gate, 0, 2 * GROUP_TOKENS)
        self._pack("gate_up", layer, up, GROUP_TOKENS, 2 * GROUP_TOKENS)

    def _pack(self, matrix: str, layer: int, rows: torch.Tensor, first_output: int, block_stride: int) -> None:
        _check(matrix, rows, torch.bfloat16)
        place = self._library.matrix(self._engine, MATRICES.index(matrix), layer)
        self._library.pack(place, rows.data_ptr(), rows.shape[0], first_output, block_stride, self.threads)

    def set_vector(self, name: str, layer: int, values: torch.Tensor) -> None:
        """Set a norm weight or a bias (any float dtype, kept as float32): one of library.VECTORS."""
        place = self._library.vector(self._engine, VECTORS.index(name), layer)
        if place is None:
            raise ValueError(f"this model has no {name}")
        wide = values.to(torch.float32).contiguous()
        ctypes.memmove(place, wide.data_ptr(), wide.numel() * 4)

    def set_tables(self, cos: torch.Tensor, sin: torch.Tensor, embedding: torch.Tensor | None) -> None:
        """cos, sin: [positions, head_dim / 2] float32; embedding: [V, H] bf16, None when tied to the lm_head."""
        _check("cos", cos, torch.float32)
        _check("sin", sin, torch.float32)
        if embedding is not None:
            _check("embedding", embedding, torch.bfloat16)
        self._tables = (cos, sin, embedding)
        self._library.set_tables(
            self._engine,
            embedding.data_ptr() if embedding is not None else None,
            cos.data_ptr(),
            sin.data_ptr(),
            cos.shape[0],
        )

    def kv_bytes_per_block(self, block_size: int) -> int:
        """Bytes of one KV block of all layers."""
        return 2 * self.shape.num_layers * self._kv_block_elements(block_size)

    def allocate_kv(self, num_blocks: int, block_size: int) -> CpuKvCache:
        """Room for num_blocks usable blocks, committed. Raises ValueError unless block_size is a multiple of 16."""
        if block_size <= 0 or block_size % GROUP_TOKENS:
            raise ValueError(f"block_size must be a multiple of {GROUP_TOKENS} on this path, not {block_size}")
        shape = (self.shape.num_layers, num_blocks + 1, self._kv_block_elements(block_size))
        return CpuKvCache(self._empty(shape, torch.bfloat16), num_blocks, block_size)

    def _empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        data = torch.empty(shape, dtype=dtype)
        self._library.commit(data.data_ptr(), data.nbytes, self.threads)
        return data

    def _kv_block_elements(self, block_size: int) -> int:
        return int(self._library.kv_block_elements(self._c_shape, block_size))

    def logits(self, batch: RaggedBatch, kv: CpuKvCache, clock: PhaseClock | None = None) -> torch.Tensor:
        """Run a step: write the batch's K and V, return the logits [R, V] float32 of batch.logit_rows.

        The memory belongs to the model and holds the logits until the next call: a new tensor of some ten MiB in each
        step would cost more in page faults than its numbers cost to compute.
        clock: `phase_clock()`, to add the step's times to. Raises ValueError for a batch that breaks a rule.
        """
        rows = batch.logit_rows.shape[0]
        if self._logits.shape[0] < rows:
            self._logits = self._empty((rows, self.shape.vocab_size), torch.float32)
        self._step(batch, kv, self._logits.data_ptr(), None, clock)
        return self._logits[:rows]

    def greedy(self, batch: RaggedBatch, kv: CpuKvCache, clock: PhaseClock | None = None) -> torch.Tensor:
        """Like `logits`, but only the id of each row's largest logit, [R] int64; the lowest id on ties."""
        out = torch.empty(len(batch.logit_rows), dtype=torch.int64)
        self._step(batch, kv, None, out.data_ptr(), clock)
        return out

    def _step(
        self,
        batch: RaggedBatch,
        kv: CpuKvCache,
        logits: int | None,
        greedy_ids: int | None,
        clock: PhaseClock | None,
    ) -> None:
        c = self._batch
        c.token_ids = _pointer(batch.token_ids, torch.int64)
        c.positions = _pointer(batch.positions, torch.int64)
        c.slot_mapping = _pointer(batch.slot_mapping, torch.int64)
        c.cu_seqlens = _pointer(batch.cu_seqlens, torch.int32)
        c.seq_lens = _pointer(batch.seq_lens, torch.int32)
        c.block_tables = _pointer(batch.block_tables, torch.int32)
        c.logit_rows = _pointer(batch.logit_rows, torch.int64)
        c.kv = kv.data.data_ptr()
        c.logits = logits
        c.greedy_ids = greedy_ids
        c.num_blocks = kv.num_blocks + 1
        c.block_size = kv.block_size
        c.num_tokens = batch.token_ids.shape[0]
        c.num_seqs, c.max_blocks = batch.block_tables.shape
        c.num_logit_rows = batch.logit_rows.shape[0]
        message = self._library.step(self._engine, c, self.threads, clock)
        if message is not None:
            raise ValueError(f"the batch cannot be computed: {message.decode()}")


def phase_clock() -> PhaseClock:
    """Seconds by phase, in the order of library.PHASES."""
    return (ctypes.c_double * len(PHASES))()


def _pointer(tensor: torch.Tensor, dtype: torch.dtype) -> int:
    if tensor.dtype is not dtype or not tensor.is_contiguous():
        raise ValueError(
            f"the batch needs a contiguous {dtype} tensor, not {tensor.dtype} with strides {tensor.stride()}"
        )
    return tensor.data_ptr()


def _check(name: str, tensor: torch.Tensor, dtype: torch.dtype) -> None:
    if tensor.dtype is not dtype or not tensor.is_contiguous():
        raise ValueError(
            f"{name} must be a contiguous {dtype} tensor, not {tensor.dtype} with strides {tensor.stride()}"
        )
