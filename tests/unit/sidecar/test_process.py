"""`weir sidecar` as a process: signals, exit codes, settings."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from weir.config import ConfigError
from weir.sidecar.settings import PodIdentity, SidecarSettings, add_flags, load

from tests.unit.sidecar.conftest import eventually
from tests.unit.sidecar.engine_server import FakeEngine

POD = {"POD_NAME": "weir-0", "POD_NAMESPACE": "llm", "POD_UID": "uid-1"}


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def test_outside_of_a_cluster_it_still_drains_on_sigusr1_and_ends_on_sigterm(engine: FakeEngine) -> None:
    port = free_port()
    command = [sys.executable, "-m", "weir.cli", "sidecar", f"--admin-address={engine.address}", "--interval=0.1"]
    command += [f"--port={port}", "--host=127.0.0.1", "--pre-stop-delay=0"]
    process = subprocess.Popen(command, env=os.environ | POD, stderr=subprocess.PIPE, text=True)
    try:

        def healthy() -> bool:
            try:
                return bool(urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz").read() == b"ok\n")
            except OSError:
                return False

        eventually(healthy, limit_s=30.0)
        process.send_signal(signal.SIGUSR1)
        eventually(engine.drained.is_set)
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=15)
        assert process.returncode == 0
        assert "drain: done" in log
    finally:
        process.kill()


def test_without_the_downward_api_it_says_what_is_missing() -> None:
    with pytest.raises(ConfigError, match="POD_UID must be set"):
        PodIdentity.from_environment({"POD_NAME": "a", "POD_NAMESPACE": "b"})


def test_flags_are_stronger_than_the_environment() -> None:
    parser = argparse.ArgumentParser()
    add_flags(parser)
    args = parser.parse_args(["--deletion-cost-interval", "2m", "--readiness-gate"])
    env = {"WEIR_SIDECAR_DELETION_COST_INTERVAL": "5", "WEIR_SIDECAR_LOG_LEVEL": "debug"}
    settings = load(args, env)
    assert settings == SidecarSettings(deletion_cost_interval_s=120.0, readiness_gate=True, log_level="debug")


def test_wrong_settings_are_all_named() -> None:
    with pytest.raises(ConfigError) as error:
        load(env={"WEIR_SIDECAR_PORT": "x", "WEIR_SIDECAR_LOG_LEVEL": "loud"})
    assert "port" in str(error.value)
    assert "log_level" in str(error.value)


def test_a_variable_that_is_no_setting_is_named_and_one_that_kubernetes_makes_is_not() -> None:
    with pytest.raises(
        ConfigError, match="WEIR_SIDECAR_INTERVALL: no such setting; did you mean WEIR_SIDECAR_INTERVAL"
    ):
        load(env={"WEIR_SIDECAR_INTERVALL": "1"})
    links = {"WEIR_SIDECAR_PORT": "tcp://10.0.0.1:9091", "WEIR_SIDECAR_SERVICE_HOST": "10.0.0.1"}
    assert load(env={**links, "WEIR_PORT": "50051"}) == SidecarSettings()


def test_the_sidecar_needs_none_of_the_engines_packages(tmp_path: Path) -> None:
    code = (
        "import sys, weir.commands.sidecar\n"
        "heavy = {'torch', 'numpy', 'transformers', 'tokenizers', 'opentelemetry', 'weir.engine', 'weir.models'}\n"
        "sys.exit(bool(heavy & set(sys.modules)))\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
