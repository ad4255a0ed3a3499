"""A fetch that nobody watches writes a line now and then, and no bars into a log."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
import weir.progress
from weir.models import fetch


def test_a_log_gets_lines_and_the_libraries_draw_no_bars(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    switches = ("TQDM_DISABLE", "HF_HUB_DISABLE_PROGRESS_BARS")
    for name in switches:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(weir.progress, "LINE_EVERY_S", 0.01)
    seen: list[str | None] = []

    def build_slowly(*_: object, **__: object) -> None:
        seen.extend(os.environ.get(name) for name in switches)
        time.sleep(0.2)

    monkeypatch.setattr(fetch, "build_folder", build_slowly)
    fetch.fetch("org/name", tmp_path)
    assert seen == ["1", "1"]
    assert "weir fetch: downloading org/name, 0 s\n" in capsys.readouterr().err
    for name in switches:
        monkeypatch.delenv(name)
