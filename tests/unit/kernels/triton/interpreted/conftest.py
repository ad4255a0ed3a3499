"""Kernels run on the CPU by Triton's interpreter, which must be chosen before Triton is imported.

So these tests are collected only where TRITON_INTERPRET=1 is set; `test_interpreted.py` beside this folder runs them
in a process of their own.
"""

from __future__ import annotations

import os

import pytest
import torch

INTERPRETING = os.environ.get("TRITON_INTERPRET") == "1"
collect_ignore_glob = [] if INTERPRETING else ["test_*.py"]

if INTERPRETING:
    from triton.runtime import interpreter

    @pytest.fixture(autouse=True)
    def _no_copy_back(monkeypatch: pytest.MonkeyPatch) -> None:
        """CPU tensors are used in place; copying each onto itself would commit every page of a huge cache."""
        monkeypatch.setattr(interpreter.GridExecutor, "_restore_args_dev", lambda *_: None)

    @pytest.fixture(autouse=True)
    def _same_numbers_in_every_run() -> None:
        torch.manual_seed(0)
