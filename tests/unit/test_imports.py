"""Imports point one way: kernels <- models <- engine <- server <- cli. The rules are in pyproject.toml."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_import_rules_hold() -> None:
    lint = Path(sys.executable).with_name("lint-imports")
    result = subprocess.run([lint], cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout


def test_the_server_process_imports_neither_torch_nor_a_tokenizer_nor_templates() -> None:
    code = "import sys, weir.server.serve; print([m for m in ('torch', 'tokenizers', 'jinja2') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_the_client_imports_neither_torch_nor_the_engine() -> None:
    code = (
        "import sys, weir.client; print([m for m in ('torch', 'numpy', 'pydantic', 'weir.engine') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
