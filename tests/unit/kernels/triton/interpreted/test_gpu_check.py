"""The command that checks a GPU, rehearsed on the CPU: its tests pass and its tables fill."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from test_triton_engine import triton_kernels

FOLDER = Path(__file__).resolve().parents[4] / "gpu"


@pytest.fixture(autouse=True)
def _import_from_the_gpu_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))


def test_the_device_tests_pass_under_the_interpreter() -> None:
    files = ["device_kernels.py", "device_engine.py"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files]
    finished = subprocess.run(command, cwd=FOLDER, env=dict(os.environ), capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stdout[-3000:]


def test_every_table_of_the_report_is_filled(tmp_path: Path) -> None:
    from check import measure
    from report import write

    results = measure(torch.device("cpu"), triton_kernels(), rehearsal=True, deadline=time.monotonic() + 600)
    assert [row["kernel"] for row in results["Attention"]] == ["decode", "prefill"]
    assert all(row["ms"] > 0 for row in results["Attention"])
    assert [(row["model"], row["engine"]) for row in results["Whole models"]] == [
        ("Qwen3-0.6B shapes", "weir"),
        ("Qwen3-0.6B shapes", "transformers generate"),
        ("Llama-3.1-8B shapes", "weir"),
        ("Llama-3.1-8B shapes", "transformers generate"),
    ]
    assert results["Not measured"] == []
    page = tmp_path / "gpu.md"
    page.write_text("Before.\n<!-- measured -->\nold\n<!-- end -->\nAfter.\n")
    write(page, {"about": "A rehearsal."} | results)
    text = page.read_text()
    assert text.startswith("Before.\n<!-- measured -->\nA rehearsal.\n\n### Device\n")
    assert text.endswith("\n<!-- end -->\nAfter.\n")
    assert "old" not in text
    assert (tmp_path / "gpu.json").exists()


def test_what_there_is_no_time_for_is_named() -> None:
    from check import measure

    results = measure(torch.device("cpu"), triton_kernels(), rehearsal=True, deadline=time.monotonic() - 1)
    assert [(row["model"], row["why"]) for row in results["Not measured"]] == [
        ("Qwen3-0.6B shapes", "out of time"),
        ("Llama-3.1-8B shapes", "out of time"),
    ]


@pytest.mark.parametrize("module", ["check", "device_engine"])
def test_the_command_imports_nothing_of_the_service_but_the_engine(module: str) -> None:
    """A GPU machine has torch, Triton and transformers, not the server's dependencies."""
    program = (
        "import sys; sys.modules.update(dict.fromkeys(('pydantic', 'grpc', 'opentelemetry', 'kubernetes')));"
        f"import {module}; print({module}.__name__)"
    )
    finished = subprocess.run([sys.executable, "-c", program], cwd=FOLDER, capture_output=True, text=True, check=False)
    assert finished.stdout.strip() == module, finished.stderr[-2000:]
