"""Every command with every kind of wrong flag, setting, file and server: one sentence and the right exit code."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from weir.cli import main

from tests.contract.server_process import CONFIG, free_port

NOBODY = "127.0.0.1:1"
SERVE = ("serve", "--load-format", "dummy", "--host", "127.0.0.1", "--port", "0", "--metrics-port", "0")
FREE_ADMIN = ("--admin-address", "127.0.0.1:0")


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Place:
    """A folder in which commands run, with one of each kind of file that is not what a command wants."""

    folder: Path
    taken: int

    def run(self, *command: str, stdin: bytes = b"", **env: str) -> Done:
        """In a process of its own."""
        process = subprocess.run(
            [sys.executable, "-m", "weir.cli", *command],
            input=stdin,
            capture_output=True,
            check=False,
            cwd=self.folder,
            timeout=120,
            env={**os.environ, "OMP_NUM_THREADS": "1", **env},
        )
        return Done(process.returncode, process.stdout.decode(errors="replace"), process.stderr.decode())


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("commands")
    tiny = folder / "tiny"
    tiny.mkdir()
    (tiny / "config.json").write_text(json.dumps(CONFIG))
    (folder / "empty").mkdir()
    (folder / "empty.txt").touch()
    (folder / "binary").write_bytes(bytes(range(256)))
    (folder / "list.json").write_text("[1, 2]")
    (folder / "tokens.txt").write_text("tenant=gold\n")
    (folder / "deep.json").write_text("[" * 100_000)
    (folder / "deep.yaml").write_text("{a: " * 5_000)
    (folder / "list.yaml").write_text("- 1\n- 2\n")
    (folder / "misspelt.yaml").write_text("engine: {max_runing: 3}\n")
    (folder / "infinite.yaml").write_text("server: {drain_timeout: .inf}\n")
    (folder / "span.jsonl").write_text('{"resourceSpans": [{"scopeSpans": [{"spans": [{"name": "engine.step"}]}]}]}\n')
    (folder / "cut.jsonl").write_text('{"resourceSpans": [')
    os.mkfifo(folder / "pipe")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield Place(folder, int(taken.getsockname()[1]))


def assert_one_sentence(done: Done, code: int, command: str) -> None:
    assert done.code == code, done
    assert "Traceback" not in done.err
    assert done.err.count("\n") == 1, done.err
    assert done.err.startswith(f"weir {command}: ") or command == ""
    assert len(done.err) > len(f"weir {command}: \n")


@pytest.mark.parametrize(
    "command",
    [
        ("generate", "x", "--temperature", "hot"),
        ("generate", "x", "--seed", "-1"),
        ("generate", "x", "--top-k", str(2**40)),
        ("generate", "x", "--token-file", "missing"),
        ("generate", "x", "--token-file", "empty.txt"),
        ("generate", "x", "--token-file", "tokens.txt"),
        ("serve", "--auth-tokens-file", "tokens.txt"),
        ("generate", "x", "--tls-ca", "binary"),
        ("generate", "x", "--tls-cert", "binary"),
        ("generate",),
        ("chat", "--max-tokens", "many"),
        ("chat", "--tls-key", "missing", "--tls-cert", "missing"),
        ("top", "--interval", "0"),
        ("top", "--interval", "-1"),
        ("top", "--interval", "nan"),
        ("top", "--tls-ca", "missing"),
        ("trace",),
        ("trace", "missing"),
        ("trace", "empty"),
        ("trace", "empty.txt"),
        ("trace", "binary"),
        ("trace", "list.json"),
        ("trace", "deep.json"),
        ("trace", "span.jsonl"),
        ("trace", "cut.jsonl"),
        ("trace", "span.jsonl", "-o", "nowhere/page.html"),
        ("trace", "span.jsonl", "-o", "span.jsonl"),
        ("trace", "span.jsonl", "--first", "one"),
        ("size",),
        ("size", "missing"),
        ("size", "empty"),
        ("size", "empty.txt"),
        ("size", "tiny", "--dtype", "fp4"),
        ("size", "tiny", "--memory", "80"),
        ("size", "tiny", "--memory", "lots"),
        ("size", "tiny", "--memory", "0"),
        ("size", "tiny", "--memory", "-1GiB"),
        ("size", "tiny", "--memory", "9" * 400),
        ("size", "tiny", "--block-size", "0"),
        ("size", "tiny", "--block-size", "7"),
        ("size", "tiny", "--kv-memory-fraction", "2"),
        ("size", "tiny", "--kv-cache-dtype", "int4"),
        ("fetch",),
        ("fetch", "no such name"),
        ("fetch", "a/b/c"),
        ("fetch", "empty"),
        ("fetch", "tiny"),
        ("bench",),
        ("bench", "--workload", "missing"),
        ("bench", "--workload", "list.json", "--target", NOBODY),
        ("bench", "--workload", "binary", "--target", NOBODY),
        ("bench", "--rate", "0"),
        ("sidecar", "--interval", "soon"),
        ("sidecar", "--port", "70000"),
        ("serve", "--max-runing", "3"),
        ("serve", "--block-size", "7"),
        ("serve", "--block-size", "0"),
        ("serve", "--max-running", "0"),
        ("serve", "--max-running", str(10**12)),
        ("serve", "--max-batch-tokens", "9" * 400),
        ("serve", "--threads", str(10**9)),
        ("serve", "--kv-memory", "9" * 400),
        ("serve", "--kv-memory", "-1"),
        ("serve", "--kv-memory-fraction", "nan"),
        ("serve", "--drain-timeout", "9" * 400),
        ("serve", "--drain-timeout", "soon"),
        ("serve", "--max-message", "3GiB"),
        ("serve", "--tenants", "{"),
        ("serve", "--tenants", "[" * 100_000),
        ("serve", "--tenants", '{"a": {"weight": "inf"}}'),
        ("serve", "--tls-cert-file", "missing"),
        ("serve", "--config", "missing"),
        ("serve", "--config", "empty"),
        ("serve", "--config", "binary"),
        ("serve", "--config", "list.yaml"),
        ("serve", "--config", "deep.yaml"),
        ("serve", "--config", "misspelt.yaml"),
        ("serve", "--config", "infinite.yaml"),
    ],
    ids=lambda command: " ".join(command)[:80],
)
def test_a_wrong_flag_or_file_is_one_sentence_and_2(
    place: Place, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place.folder)
    try:
        code = main(command)
    except SystemExit as exited:
        code = int(exited.code or 0)
    assert_one_sentence(Done(code, *capsys.readouterr()), 2, command[0])


@pytest.mark.parametrize(
    "flags",
    [
        ("--tls-cert-file", "binary", "--tls-key-file", "binary"),
        ("--auth-tokens-file", "missing"),
        ("--auth-tokens-file", "empty.txt"),
        ("--auth-tokens-file", "binary"),
        ("--admin-address", "0.0.0.0:1"),
        ("--admin-address", "unix:nowhere/admin.sock"),
        ("--admin-address", "unix:empty.txt"),
        ("--admin-address", "unix:" + "x" * 200),
        ("--host", "999.1.1.1"),
        ("--host", "192.0.2.1"),
        ("--metrics-host", "not a host"),
        ("--trace-file", "pipe"),
        ("--trace-file", "nowhere/spans.jsonl"),
        ("--trace-endpoint", "carrier pigeon"),
    ],
    ids=" ".join,
)
def test_what_a_server_cannot_start_with_is_one_sentence_and_2(place: Place, flags: tuple[str, ...]) -> None:
    assert_one_sentence(place.run(*SERVE, *FREE_ADMIN, *flags), 2, "serve")


@pytest.mark.parametrize("command", [(), ("--nonsense",), ("surf",)])
def test_a_wrong_command_is_one_sentence_and_2(place: Place, command: tuple[str, ...]) -> None:
    done = place.run(*command)
    assert_one_sentence(done, 2, "")
    assert done.err.startswith("weir: ")


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (("generate", "x", "--target", NOBODY), 3),
        (("chat", "--target", NOBODY), 3),
        (("top", "--once", "--interval", "0.1", "--target", NOBODY), 3),
        (("bench", "--random", "1,1,1", "--target", NOBODY), 3),
        ((*SERVE, *FREE_ADMIN, "--port", "{taken}"), 1),
        ((*SERVE, *FREE_ADMIN, "--metrics-port", "{taken}"), 1),
        ((*SERVE, "--admin-address", "127.0.0.1:{taken}"), 1),
        ((*SERVE, *FREE_ADMIN, "--health-port", "{taken}"), 1),
    ],
    ids=lambda value: " ".join(value)[:80] if isinstance(value, tuple) else str(value),
)
def test_nobody_there_or_somebody_in_the_way_is_one_sentence(place: Place, command: tuple[str, ...], code: int) -> None:
    filled = [word.replace("{taken}", str(place.taken)) for word in command]
    assert_one_sentence(place.run(*filled, stdin=b"hello\n"), code, command[0])


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ({"WEIR_MAX_RUNING": "3"}, "WEIR_MAX_RUNING: no such setting; did you mean WEIR_MAX_RUNNING?"),
        ({"WEIR_MAX_RUNNING": "many"}, "WEIR_MAX_RUNNING: "),
        ({"WEIR_PORT": "http"}, "WEIR_PORT: "),
        ({"WEIR_SERVED_MODEL_NAME": ""}, "WEIR_SERVED_MODEL_NAME: must not be empty"),
        ({"WEIR_CONFIG": "missing"}, "cannot read the settings file missing"),
    ],
)
def test_a_wrong_variable_is_one_sentence_that_names_it(place: Place, env: dict[str, str], said: str) -> None:
    done = place.run("serve", **env)
    assert_one_sentence(done, 2, "serve")
    assert said in done.err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--device", "cuda"), "device cuda was asked for, and torch finds no GPU"),
        (("--kernels", "triton", "--device", "cpu"), "the triton kernels need a GPU"),
        (("--max-model-len", "5000"), "max-model-len 5000 is more than the model's own limit of 4096"),
        (("--kv-memory", "4KiB"), "one request of max-model-len 4096 needs"),
        (("--kv-cache-dtype", "fp8_e4m3", "--kernels", "cpu"), "no KV cache of dtype fp8_e4m3"),
    ],
    ids=lambda value: " ".join(value)[:80] if isinstance(value, tuple) else "",
)
def test_what_only_the_engine_knows_ends_with_2_as_well(place: Place, flags: tuple[str, ...], said: str) -> None:
    done = place.run(*SERVE, *FREE_ADMIN, "--model", "tiny", "--log-level", "error", *flags)
    assert done.code == 2, done
    assert "Traceback" not in done.err
    assert done.err.count("\n") == 1, done.err
    assert said in done.err


@pytest.mark.parametrize("stdin", [b"\xff\xfe", b"\xed\xa0\x80"])
def test_what_is_no_text_on_stdin_is_one_sentence(place: Place, stdin: bytes) -> None:
    assert_one_sentence(place.run("generate", "-", "--target", NOBODY, stdin=stdin), 2, "generate")


@pytest.mark.parametrize(
    "command", [("size", "tiny"), ("trace", "--help"), ("serve", "--help"), ("--version",)], ids=" ".join
)
def test_a_reader_that_has_seen_enough_ends_the_command_without_a_word(place: Place, command: tuple[str, ...]) -> None:
    read, write = os.pipe()
    os.close(read)
    process = subprocess.run(
        [sys.executable, "-m", "weir.cli", *command],
        stdout=write,
        stderr=subprocess.PIPE,
        check=False,
        cwd=place.folder,
    )
    os.close(write)
    assert (process.returncode, process.stderr) == (141, b"")


@pytest.mark.parametrize("command", [("size", "tiny"), ("serve", "--help")], ids=" ".join)
def test_a_full_disk_is_one_sentence_and_1(place: Place, command: tuple[str, ...]) -> None:
    with Path("/dev/full").open("w") as full:
        process = subprocess.run(
            [sys.executable, "-m", "weir.cli", *command],
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
            cwd=place.folder,
        )
    assert_one_sentence(Done(process.returncode, "", process.stderr.decode()), 1, command[0])


def test_a_port_that_is_free_again_is_no_fault(place: Place) -> None:
    """The checks look, and leave nothing behind that a server would stumble over."""
    port = free_port()
    done = place.run(*SERVE, *FREE_ADMIN, "--port", str(port), "--metrics-port", str(port))
    assert_one_sentence(done, 1, "serve")
    assert f"[::]:{port}" in done.err
