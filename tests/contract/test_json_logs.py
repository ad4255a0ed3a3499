"""With --log-format json every line on stderr is one JSON object, whoever writes it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from weir.config import TelemetrySettings
from weir.telemetry.logging import configure_logging

from tests.contract.server_process import ServerProcess, free_port

NOISE = """
import sys, types

def noisy(settings):
    import socket, threading, warnings
    from concurrent.futures import ThreadPoolExecutor
    import grpc
    taken = socket.socket()
    taken.bind(("127.0.0.1", 0))
    taken.listen()
    server = grpc.server(ThreadPoolExecutor(1))
    for add in (
        lambda: server.add_insecure_port("127.0.0.1:%d" % taken.getsockname()[1]),
        lambda: server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([(b"junk", b"junk")])),
    ):
        try:
            add()
        except RuntimeError:
            pass
    warnings.warn("an old way")
    thread = threading.Thread(target=lambda: 1 / 0)
    thread.start()
    thread.join()
    raise LookupError("nobody\\ncaught it")

fake = types.ModuleType("weir.server.serve")
fake.serve = noisy
sys.modules["weir.server.serve"] = fake
from weir.cli import main
sys.exit(main(["serve", "--log-format", sys.argv[1]]))
"""


def lines_of(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


def run_noise(log_format: str, **env: str) -> str:
    command = [sys.executable, "-c", NOISE, log_format]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **env})
    assert done.returncode == 1
    return done.stderr


def test_what_grpc_python_and_uncaught_errors_write_are_json_or_nothing() -> None:
    lines = lines_of(run_noise("json"))
    assert [(line["logger"], line["severity"]) for line in lines] == [
        ("py.warnings", "WARNING"),
        ("uncaught", "CRITICAL"),
        ("uncaught", "CRITICAL"),
    ]
    assert "an old way" in str(lines[0]["message"])
    assert "ZeroDivisionError" in str(lines[1]["exception"])
    assert "nobody\ncaught it" in str(lines[2]["exception"])


def test_as_text_a_traceback_has_lines_of_its_own() -> None:
    assert "Traceback (most recent call last):\n" in run_noise("text")


def test_whoever_asks_for_the_lines_of_grpc_gets_them() -> None:
    assert "Failed to add port" in run_noise("json", GRPC_VERBOSITY="ERROR")


@pytest.mark.slow
def test_a_server_writes_json_from_its_start_to_its_end(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, "--log-format", "json") as server, server.ready() as client:
        client.complete(token_ids=[1, 2], max_tokens=3, ignore_eos=True)
        assert server.terminate() == 0
    messages = [str(line["message"]) for line in lines_of(server.log_file.read_text())]
    assert any(message.startswith("listening on") for message in messages)
    assert messages[-1] == "stopped"


@pytest.mark.slow
def test_settings_that_only_the_engine_refuses_are_json_too(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, "--log-format", "json", "--max-model-len", "5000") as server:
        assert server.process.wait(timeout=60) == 2
    assert any("max-model-len 5000" in str(line["message"]) for line in lines_of(server.log_file.read_text()))


def test_what_the_server_cannot_start_with_is_json_too(tmp_path: Path) -> None:
    port = str(free_port())
    with ServerProcess(tmp_path, "--log-format", "json", "--port", port, "--metrics-port", port) as server:
        assert server.process.wait(timeout=60) == 1
    [line] = lines_of(server.log_file.read_text())
    assert (line["severity"], line["logger"]) == ("ERROR", "weir.commands.serve")


def break_the_engine() -> None:
    """Runs in the engine's process before it loads."""

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("two\nlines")

    import weir.engine.load

    configure_logging(TelemetrySettings(log_format="json"))
    weir.engine.load.load_engine = broken  # type: ignore[assignment]


STARTS_A_BROKEN_ENGINE = """
import asyncio
from weir.config import Settings
from weir.engine.process import EngineClient
from tests.contract.test_json_logs import break_the_engine

async def main():
    engine = EngineClient(Settings(), break_the_engine)
    engine.start()
    try:
        await engine.ready()
    except Exception as error:
        print(error)

if __name__ == "__main__":
    asyncio.run(main())
"""


def test_an_engine_that_dies_of_a_fault_says_it_in_one_json_line(tmp_path: Path) -> None:
    (tmp_path / "start.py").write_text(STARTS_A_BROKEN_ENGINE)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "start.py")],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert done.stdout == "the engine failed: RuntimeError: two\nlines\n"
    [line] = lines_of(done.stderr)
    assert (line["logger"], line["severity"]) == ("weir.engine.worker", "CRITICAL")
    assert "RuntimeError: two\nlines" in str(line["exception"])
