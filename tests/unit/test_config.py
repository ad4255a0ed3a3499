"""Settings: the order of sources, units, and errors that name the setting."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
from weir import config


def load(*flags: str, env: dict[str, str] | None = None) -> config.Settings:
    parser = argparse.ArgumentParser()
    config.add_flags(parser, "model", "engine", "server", "telemetry")
    return config.load(parser.parse_args(list(flags)), env or {})


def test_flags_beat_environment_beats_file_beats_defaults(tmp_path: Path) -> None:
    file = tmp_path / "weir.yaml"
    file.write_text("engine: {max_running: 3, max_batch_tokens: 100, kv_memory: 1GiB}\nserver: {drain_timeout: 5s}\n")
    settings = load(
        "--config", str(file), "--max-running", "1", env={"WEIR_MAX_RUNNING": "2", "WEIR_MAX_BATCH_TOKENS": "200"}
    )
    assert settings.engine.max_running == 1
    assert settings.engine.max_batch_tokens == 200
    assert settings.engine.kv_memory_bytes == 2**30
    assert settings.server.drain_timeout_s == 5.0
    assert settings.engine.default_max_tokens == 512


@pytest.mark.parametrize(
    ("text", "size"), [("1024", 1024), ("2GiB", 2**31), ("512Mi", 2**29), ("1.5G", 1_500_000_000), ("3k", 3000)]
)
def test_sizes_take_units(text: str, size: int) -> None:
    assert load("--kv-memory", text).engine.kv_memory_bytes == size


@pytest.mark.parametrize(("text", "seconds"), [("30", 30.0), ("500ms", 0.5), ("2m", 120.0), ("1h", 3600.0)])
def test_durations_take_units(text: str, seconds: float) -> None:
    assert load("--drain-timeout", text).server.drain_timeout_s == seconds


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--kv-memory", "lots"), "--kv-memory: not a size: 'lots'"),
        (("--port", "70000"), "--port: .*less than or equal to 65535"),
        (("--dtype", "int3"), "--dtype: .*'auto', 'float32', 'bfloat16' or 'float16'"),
        (("--max-running", "64", "--max-batch-tokens", "64"), "must be larger than max-running"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_allowed(flags: tuple[str, ...], message: str) -> None:
    with pytest.raises(config.ConfigError, match=message):
        load(*flags)


def test_an_unknown_setting_in_the_file_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "weir.yaml"
    file.write_text("engine: {max_runing: 3}\n")
    with pytest.raises(config.ConfigError, match=r"unknown setting engine\.max_runing"):
        load("--config", str(file))


def test_booleans_have_a_no_form() -> None:
    assert load().engine.prefix_cache
    assert not load("--no-prefix-cache").engine.prefix_cache


def test_settings_cannot_be_changed_afterwards() -> None:
    with pytest.raises(Exception, match="frozen"):
        load().engine.max_running = 3  # type: ignore[misc]
