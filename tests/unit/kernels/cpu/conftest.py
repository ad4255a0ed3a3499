"""Every instruction set of this machine is tested, not only the one that serving would pick."""

from __future__ import annotations

import pytest
from weir_kernels.cpu import usable_isas


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "isa" in metafunc.fixturenames:
        metafunc.parametrize("isa", usable_isas())
