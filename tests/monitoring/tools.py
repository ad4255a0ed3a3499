"""The Prometheus programs that these tests run; `make test-monitoring` installs them."""

from __future__ import annotations

import shutil

import pytest


def program(name: str) -> str:
    """Path of `prometheus` or `promtool`; the test fails when it is not installed."""
    path = shutil.which(name)
    if path is None:
        pytest.fail(f"{name} is not installed; `make test-monitoring` installs Debian's prometheus package")
    return path
