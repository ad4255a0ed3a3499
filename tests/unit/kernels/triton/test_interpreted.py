"""Runs the interpreted kernel tests in a process of their own, where Triton interprets from the start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_kernel_matches_its_reference_under_the_interpreter() -> None:
    folder = Path(__file__).parent / "interpreted"
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder)]
    finished = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stdout[-5000:] + finished.stderr[-2000:]
