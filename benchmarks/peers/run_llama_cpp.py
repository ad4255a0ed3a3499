"""llama.cpp through llama-cpp-python's C interface: 64 slots on one KV cache, prompts in chunks beside decodes.

The library has no scheduler of its own (that is its server's), so this is the smallest one: every running sequence
decodes, what is left of the batch goes to prompts, a slot is free as soon as its sequence ends. K and V are f16, its
default.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import llama_cpp  # type: ignore[import-not-found]
import numpy as np

from .child import MAX_RUNNING, Item, Setup, Times, main

_BATCH_TOKENS = 512


@dataclass(slots=True)
class _Running:
    """A request in a slot; `done` tokens are in the KV cache."""

    number: int
    slot: int
    tokens: list[int]
    prompt: int
    max_tokens: int
    done: int = 0

    @property
    def ended(self) -> bool:
        return len(self.tokens) == self.prompt + self.max_tokens


class LlamaCpp:
    """A model, a context and one batch that every step fills anew."""

    def __init__(self, setup: Setup) -> None:
        llama_cpp.llama_backend_init()
        params = llama_cpp.llama_model_default_params()
        params.n_gpu_layers = 0
        self._model = llama_cpp.llama_model_load_from_file(str(setup.model).encode(), params)
        if not self._model:
            raise RuntimeError(f"llama.cpp cannot load {setup.model}")
        self._vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))
        self._context = llama_cpp.llama_init_from_model(self._model, self._context_params(setup))
        self._batch = llama_cpp.llama_batch_init(_BATCH_TOKENS, 0, 1)

    def _context_params(self, setup: Setup) -> llama_cpp.llama_context_params:
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = setup.total
        params.n_batch = params.n_ubatch = _BATCH_TOKENS
        params.n_seq_max = MAX_RUNNING
        params.n_threads = params.n_threads_batch = setup.threads
        params.kv_unified = True
        return params

    def run(self, items: Sequence[Item]) -> Times:
        times = Times.start(len(items))
        waiting = deque(enumerate(items))
        free = deque(range(MAX_RUNNING))
        running: list[_Running] = []
        while waiting or running:
            while waiting and free:
                number, item = waiting.popleft()
                running.append(_Running(number, free.popleft(), list(item.prompt), len(item.prompt), item.max_tokens))
            self._step(running, times)
            for sequence in [s for s in running if s.ended]:
                llama_cpp.llama_memory_seq_rm(llama_cpp.llama_get_memory(self._context), sequence.slot, -1, -1)
                free.append(sequence.slot)
                running.remove(sequence)
        return times

    def _step(self, running: Sequence[_Running], times: Times) -> None:
        sampling: list[_Running] = []
        count = 0
        # Decodes have one token to do, prompts have more: the short ones first.
        for sequence in sorted(running, key=lambda s: len(s.tokens) - s.done > 1):
            todo = min(len(sequence.tokens) - sequence.done, _BATCH_TOKENS - count)
            for position in range(sequence.done, sequence.done + todo):
                last = position == len(sequence.tokens) - 1
                self._put(count, sequence.tokens[position], position, sequence.slot, last)
                count += 1
            sequence.done += todo
            if todo and sequence.done == len(sequence.tokens):
                sampling.append(sequence)
        self._batch.n_tokens = count
        if code := llama_cpp.llama_decode(self._context, self._batch):
            raise RuntimeError(f"llama_decode returned {code}")
        if not sampling:
            return
        logits = ctypes.cast(llama_cpp.llama_get_logits(self._context), ctypes.POINTER(ctypes.c_float))
        rows = np.ctypeslib.as_array(logits, (len(sampling), self._vocab_size))
        for sequence, token in zip(sampling, rows.argmax(axis=1).tolist(), strict=True):
            sequence.tokens.append(token)
            times.add(sequence.number, [token])

    def _put(self, index: int, token: int, position: int, slot: int, wants_logits: bool) -> None:
        batch = self._batch
        batch.token[index] = token
        batch.pos[index] = position
        batch.n_seq_id[index] = 1
        batch.seq_id[index][0] = slot
        batch.logits[index] = wants_logits


if __name__ == "__main__":
    main(LlamaCpp)
