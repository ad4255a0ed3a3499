"""One GPU a replica, said aloud where a pod or a shell shows more."""

from __future__ import annotations

import logging

import pytest
from weir.engine.load import say_which_gpu


def test_idle_gpus_are_named(caplog: pytest.LogCaptureFixture) -> None:
    say_which_gpu(2, 8, logging.getLogger("weir.test"))
    assert "computing on GPU 2 of 8 visible ones; the others are idle" in caplog.text


def test_one_gpu_is_no_news(caplog: pytest.LogCaptureFixture) -> None:
    say_which_gpu(0, 1, logging.getLogger("weir.test"))
    assert caplog.text == ""
