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
    ("text", "size"), [("1024", 1024), ("1GiB", 2**30), ("512Mi", 2**29), ("1.5G", 1_500_000_000), ("3k", 3000)]
)
def test_sizes_take_units(text: str, size: int) -> None:
    assert load("--trace-file-max", text).telemetry.trace_file_max_bytes == size
    if size >= 2**20:
        assert load("--kv-memory", text).engine.kv_memory_bytes == size


def test_a_memory_without_a_unit_is_a_mistake() -> None:
    with pytest.raises(config.ConfigError, match="--kv-memory: '80' is 80 bytes; use a unit, as in 80GiB"):
        load("--kv-memory", "80")
    assert load("--kv-memory", str(2**30)).engine.kv_memory_bytes == 2**30


@pytest.mark.parametrize(
    ("size", "text"), [(800, "800 B"), (24 * 2**30, "24 GiB"), (2621440, "2.50 MiB"), (3 * 2**50, "3,072 TiB")]
)
def test_sizes_are_written_for_people(size: int, text: str) -> None:
    assert config.format_size(size) == text


@pytest.mark.parametrize(("text", "seconds"), [("30", 30.0), ("500ms", 0.5), ("2m", 120.0), ("1h", 3600.0)])
def test_durations_take_units(text: str, seconds: float) -> None:
    assert load("--drain-timeout", text).server.drain_timeout_s == seconds


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--kv-memory", "lots"), "--kv-memory: not a size: 'lots'"),
        (("--port", "70000"), "--port: .*less than or equal to 65535"),
        (("--block-size", "7"), "--block-size: .*multiple of 16"),
        (("--kv-memory", "9" * 400), "--kv-memory: more than any memory"),
        (("--max-running", "3000000000"), "--max-running: must be at most 2147483647"),
        (("--drain-timeout", "9" * 400), "--drain-timeout: .*finite number"),
        (("--host", ""), "--host: must not be empty"),
        (("--tenants", "[" * 100_000), "--tenants: not JSON"),
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
    with pytest.raises(
        config.ConfigError, match=r"unknown setting engine\.max_runing; did you mean engine\.max_running\?"
    ):
        load("--config", str(file))


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("WEIR_MODLE", "; did you mean WEIR_MODEL?"),
        ("WEIR_DRAIN_TIMEOUT_S", "; did you mean WEIR_DRAIN_TIMEOUT?"),
        ("WEIR_SERVICE", ""),
        ("WEIR_QQQQQQQQQQ", ""),
    ],
)
def test_an_unknown_variable_is_an_error_that_names_the_nearest_setting(name: str, hint: str) -> None:
    with pytest.raises(config.ConfigError) as error:
        load(env={name: "1", "WEIR_MAX_RUNNING": "3"})
    assert str(error.value).startswith(f"{name}: no such setting")
    assert str(error.value).endswith(hint)


def test_variables_of_other_commands_are_none_of_the_servers() -> None:
    others = {
        "WEIR_TARGET": "h:1",
        "WEIR_CACHE_DIR": "/cache",
        "WEIR_SIDECAR_PORT": "9091",
        "WEIRD": "x",
        "PATH": "/bin",
    }
    assert load(env=others) == load()


@pytest.mark.parametrize("service", ["WEIR", "WEIR_METRICS", "WEIR_ADMIN", "WEIR_HEALTH", "WEIR_CHAT_7B"])
def test_the_variables_that_kubernetes_makes_for_a_service_are_no_settings(service: str) -> None:
    # As the kubelet writes them for a Service of one named port.
    links = {
        f"{service}_SERVICE_HOST": "10.0.0.1",
        f"{service}_SERVICE_PORT": "50051",
        f"{service}_SERVICE_PORT_GRPC": "50051",
        f"{service}_PORT": "tcp://10.0.0.1:50051",
        f"{service}_PORT_50051_TCP": "tcp://10.0.0.1:50051",
        f"{service}_PORT_50051_TCP_PROTO": "tcp",
        f"{service}_PORT_50051_TCP_PORT": "50051",
        f"{service}_PORT_50051_TCP_ADDR": "10.0.0.1",
    }
    assert load(env=links) == load()
    assert load(env={**links, "WEIR_MAX_RUNNING": "3"}).engine.max_running == 3


def test_a_port_that_is_set_by_hand_is_a_setting() -> None:
    assert load(env={"WEIR_PORT": "7", "WEIR_METRICS_PORT": "8"}).server.port == 7
    with pytest.raises(config.ConfigError, match="WEIR_PORT"):
        load(env={"WEIR_PORT": "tcp:7"})


def test_booleans_have_a_no_form() -> None:
    assert load().engine.prefix_cache
    assert not load("--no-prefix-cache").engine.prefix_cache


def test_settings_cannot_be_changed_afterwards() -> None:
    with pytest.raises(Exception, match="frozen"):
        load().engine.max_running = 3  # type: ignore[misc]
