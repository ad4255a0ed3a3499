"""What is seen of a server that loads, and models that are fetched at their first use."""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import os
import pty
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

import pytest
import torch
from weir.cli import main
from weir.client import Client
from weir.engine.records import LoadStage
from weir.models.build import build_decoder
from weir.models.loader import load_weights
from weir.models.spec import ModelSpec
from weir.server.app import App

from tests.contract.decode import eventually
from tests.contract.fake_engine import FakeEngine
from tests.contract.fake_hub import hub
from tests.contract.server_process import free_port
from tests.unit.models import tiny, vocabularies


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole model folder: random weights, 3 layers, a tokenizer."""
    folder = tmp_path_factory.mktemp("hub") / "tiny"
    config = tiny.configs()["qwen2"]
    config.vocab_size = 512
    tiny.save(tiny.make(config), folder)
    vocabularies.save(vocabularies.byte_level(), folder)
    return folder


@contextlib.contextmanager
def serving(command: Sequence[str], folder: Path, env: dict[str, str], stderr: int | IO[str]) -> Iterator[Client]:
    port = free_port()
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "weir.cli", "serve", *command, "--host", "127.0.0.1", "--port", str(port)),
            *("--admin-address", "127.0.0.1:0", "--metrics-port", "0", "--kv-memory", "32MiB", "--threads", "1"),
        ],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HOME": str(folder / "hf"), **env},
        stderr=stderr,
    )
    try:
        with Client(f"127.0.0.1:{port}") as client:
            client.wait_ready(120)
            yield client
        process.terminate()
        assert process.wait(timeout=60) == 0
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
def test_serve_fetches_a_model_at_its_first_use_and_not_again(model: Path, tmp_path: Path) -> None:
    with hub("org/tiny", model) as (env, asked):
        for _ in range(2):
            with (
                (tmp_path / "log").open("a") as log,
                serving(["org/tiny", "--log-format", "json"], tmp_path, env, log) as client,
            ):
                answer = client.complete("The river", max_tokens=4, ignore_eos=True)
                assert len(answer.token_ids) == 4
                assert client.model().name == "tiny"
    assert sorted(asked) == sorted(file.name for file in model.iterdir() if file.name != ".gitattributes")
    assert (tmp_path / "models" / "org" / "tiny" / "model.safetensors").read_bytes() == (
        model / "model.safetensors"
    ).read_bytes()
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    said = [line["message"] for line in lines if line["logger"] == "weir.commands.serve"]
    assert said[0] == "downloading org/tiny from the hub"
    assert said.count("models/org/tiny is complete") == 2


@pytest.mark.slow
def test_serve_takes_a_folder_as_well(model: Path, tmp_path: Path) -> None:
    with serving([str(model)], tmp_path, {"HF_ENDPOINT": "http://127.0.0.1:1"}, subprocess.DEVNULL) as client:
        assert client.model().name == "tiny"


def test_a_download_that_fails_is_one_sentence_and_1(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "weir.cli", "serve", "org/gone", "--port", "0", "--metrics-port", "0"),
            *("--admin-address", "127.0.0.1:0", "--log-level", "error"),
        ],
        cwd=tmp_path,
        env={**os.environ, "HF_ENDPOINT": "http://127.0.0.1:1", "HF_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("weir serve: cannot download org/gone: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["nothing"], "weir serve: 'nothing' is not a folder"),
        (["org/tiny", "--model", "other"], "weir serve: MODEL (org/tiny) and --model say the same"),
        (["org/tiny", "--max-running", "0"], "weir serve: --max-running"),
        (["org/tiny", "--tls-cert-file", "a", "--tls-key-file", "b"], "weir serve: tls-cert-file a"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_fetched(
    command: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def fetched(*_: object, **__: object) -> Path:
        pytest.fail("fetched")

    monkeypatch.chdir(tmp_path)
    importlib.import_module("weir.commands.fetch")  # before, or it would keep what is put there now
    monkeypatch.setattr("weir.models.fetch.fetch", fetched)
    monkeypatch.setattr("weir.telemetry.logging.configure_logging", lambda _: None)
    assert main(["serve", *command]) == 2
    assert capsys.readouterr().err.startswith(said)


class Reports:
    def __init__(self) -> None:
        self.stages: dict[str, list[tuple[int, int]]] = {}

    def __call__(self, what: str, done_bytes: int = 0, total_bytes: int = 0) -> None:
        self.stages.setdefault(what, []).append((done_bytes, total_bytes))


def test_reading_weights_counts_every_byte_of_them(model: Path) -> None:
    reports = Reports()
    spec = ModelSpec.from_folder(model)
    weights = load_weights(model, spec, torch.float32, torch.device("cpu"), reports)
    [steps] = reports.stages.values()
    done = [step for step, _ in steps]
    total = sum({tensor.data_ptr(): tensor.nbytes for tensor in weights.values()}.values())
    assert {of for _, of in steps} == {total}
    assert done == sorted(done)
    assert (done[0], done[-1]) == (0, total)


def test_building_says_what_it_is_at(model: Path) -> None:
    reports = Reports()
    build_decoder(model, dtype="bfloat16", device="cpu", report=reports)
    assert list(reports.stages)[:2] == ["reading weights", "preparing the CPU kernels"]


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weir.progress.LINE_EVERY_S", 0.02)


async def test_a_log_gets_a_line_now_and_then_while_a_server_loads(
    often: None, loading: App, engine: FakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        engine.on_loading[0](LoadStage("reading weights", 3, 12))
        await eventually(lambda: "loading: reading weights 3 of 12 MiB" in caplog.text)
        engine.load()
        await loading.lifecycle.changed(0, timeout_s=5)
        seen = len(caplog.records)
    assert all(record.name == "weir.server.app" for record in caplog.records[:seen] if "loading" in record.message)


@pytest.mark.slow
def test_a_terminal_gets_a_bar_whose_place_log_lines_take(model: Path, tmp_path: Path) -> None:
    reader, terminal = pty.openpty()
    drawn = bytearray()

    def read() -> None:
        with contextlib.suppress(OSError):  # how a terminal says that nobody is left to write
            while chunk := os.read(reader, 65536):
                drawn.extend(chunk)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    with serving([str(model)], tmp_path, {}, terminal):
        os.close(terminal)
    thread.join(10)
    text = drawn.decode()
    assert "\r\x1b[Kloading: " in text
    # Whatever was drawn is taken away before a line is written there.
    for line in text.split("\r\n")[:-1]:
        assert re.fullmatch(r"(\r\x1b\[K[^\r]*)*\r\x1b\[K\d\d:\d\d:\d\d\.\d{3} [A-Z]+ .*", line), line
