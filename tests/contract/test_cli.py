"""The command line as a script meets it: stdout, one line on stderr, an exit code."""

from __future__ import annotations

import asyncio
import io
import json
import subprocess
import sys
from collections.abc import Callable

import pytest
from weir.cli import COMMANDS, main
from weir.engine.errors import QueueFullError
from weir.server.app import App

from tests.contract.decode import eventually
from tests.contract.fake_engine import FakeEngine

Run = Callable[..., "asyncio.Future[int]"]


@pytest.fixture
def weir(app: App) -> Run:
    """Run a command against the test's server, off the event loop that serves it."""

    def run(*arguments: str) -> asyncio.Future[int]:
        return asyncio.ensure_future(
            asyncio.to_thread(main, [arguments[0], "--target", f"127.0.0.1:{app.port}", *arguments[1:]])
        )

    return run


async def test_generate_streams_the_text(weir: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert await weir("generate", "hello", "--max-tokens", "4") == 0
    assert capsys.readouterr() == ("hell\n", "")


async def test_generate_passes_its_flags_on(weir: Run, engine: FakeEngine) -> None:
    flags = ["--max-tokens", "3", "--temperature", "0", "--seed", "7", "--stop", "X", "--stop", "Y"]
    flags += ["--top-p", "0.5", "--ignore-eos", "--priority", "2"]
    assert await weir("generate", "hello", *flags) == 0
    [request] = engine.submitted
    params = request.params
    assert (params.max_tokens, params.temperature, params.seed, params.top_p) == (3, 0.0, 7, 0.5)
    assert (params.stop, params.ignore_eos, request.priority) == (("X", "Y"), True, 2)


async def test_generate_json_prints_one_object(weir: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert await weir("generate", "hello", "--max-tokens", "2", "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["text"] == "he"
    assert answer["choices"][0]["token_ids"] == [104, 101]
    assert answer["usage"] == {"prompt_tokens": 5, "completion_tokens": 2, "cached_tokens": 2}


async def test_generate_reads_stdin(
    weir: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("piped"))
    assert await weir("generate", "-", "--max-tokens", "9") == 0
    assert capsys.readouterr().out == "piped\n"


async def test_a_request_that_can_never_succeed_exits_with_2_and_one_line(
    weir: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await weir("generate", "x", "--top-p", "1.5") == 2
    assert capsys.readouterr() == ("", "weir generate: params.top_p: must be in (0, 1], got 1.5\n")


async def test_a_full_queue_exits_with_3(weir: Run, engine: FakeEngine, capsys: pytest.CaptureFixture[str]) -> None:
    engine.reserve_error = QueueFullError(20, 4, 100, 5, 0.01)
    assert await weir("generate", "x") == 3
    assert "20" in capsys.readouterr().err


async def test_a_timeout_exits_with_3(weir: Run, engine: FakeEngine) -> None:
    engine.decoding.clear()
    assert await weir("generate", "x", "--timeout", "0.1") == 3


def test_no_server_exits_with_3_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "--target", "127.0.0.1:1", "x"]) == 3
    assert capsys.readouterr().err.startswith("weir generate: no server answers:")


async def test_chat_keeps_the_conversation(
    weir: Run, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("hi\n\nbye\n"))
    assert await weir("chat", "--system", "be brief", "--max-tokens", "3") == 0
    first, second = (bytes(request.prompt_token_ids) for request in engine.submitted)
    assert first == b"<system>be brief<user>hi<assistant>"
    # The echo of the first three bytes of the template is what the fake model answered.
    assert second == b"<system>be brief<user>hi<assistant><sy<user>bye<assistant>"
    assert capsys.readouterr().out == "<sy\n<sy\n"


async def test_an_interrupted_generate_cancels_its_request(weir: Run, app: App, engine: FakeEngine) -> None:
    engine.decoding.clear()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "weir.cli", "generate", "--target", f"127.0.0.1:{app.port}", "abc"
    )
    await eventually(lambda: len(engine.streams) == 1, timeout_s=20)
    process.send_signal(2)
    assert await process.wait() == 130
    await eventually(lambda: not engine.streams)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_shows_its_help(name: str) -> None:
    with pytest.raises(SystemExit) as exited:
        main([name, "--help"])
    assert exited.value.code == 0


def test_generate_imports_nothing_heavy() -> None:
    program = """
import sys
from weir.cli import main
main(["generate", "--target", "127.0.0.1:1", "x"])
heavy = {"torch", "numpy", "pydantic", "yaml", "tokenizers", "opentelemetry", "kubernetes"} & set(sys.modules)
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_missing_extra_is_one_line_that_says_what_to_install() -> None:
    program = "import sys; sys.modules['yaml'] = None; from weir.cli import main; sys.exit(main(['serve']))"
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "weir serve: yaml is missing: pip install 'weir-llm[server]'\n"


def test_wrong_settings_exit_with_2_and_name_the_flag(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--max-running", "0"]) == 2
    assert "--max-running" in capsys.readouterr().err


def test_an_admin_address_that_others_can_reach_exits_with_2() -> None:
    command = [sys.executable, "-m", "weir.cli", "serve", "--admin-address", "0.0.0.0:1"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 2
    assert "not a loopback address" in done.stderr
