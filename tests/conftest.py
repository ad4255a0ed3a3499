"""Fixtures for every test."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

_REPOSITORY = Path(__file__).parent.parent


@pytest.fixture(scope="session")
def model_dir() -> Path:
    """The demo model. Its absence fails the test: a skipped comparison with the real model would look like success."""
    folder = Path(os.environ.get("WEIR_TEST_MODEL", _REPOSITORY / "models" / "smollm2-135m-instruct"))
    if not (folder / "config.json").is_file():
        pytest.fail(f"no model in {folder}: run `make model`, or name a folder in WEIR_TEST_MODEL")
    return folder
