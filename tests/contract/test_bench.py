"""`weir bench` as a script meets it: where it runs, what it says, what it leaves; with the client's install alone."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from weir.cli import main
from weir.engine.errors import QueueFullError
from weir.server.app import App

from tests.contract.fake_engine import FakeEngine

Run = Callable[..., "asyncio.Future[int]"]
CONVERSATIONS = [
    {"conversations": [{"from": "human", "value": f"turn {number}"}, {"from": "gpt", "value": "yes"}]}
    for number in range(6)
]


@pytest.fixture
def bench(app: App) -> Run:
    """Run `weir bench` against the test's server, off the event loop that serves it."""

    def run(*arguments: str) -> asyncio.Future[int]:
        return asyncio.ensure_future(
            asyncio.to_thread(main, ["bench", "--target", f"127.0.0.1:{app.port}", *arguments])
        )

    return run


async def test_random_prompts_are_of_the_served_vocabulary_and_answered_at_their_length(
    bench: Run, engine: FakeEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await bench("--random", "5,8,4", "--json", "-") == 0
    printed = capsys.readouterr()
    figures = json.loads(printed.out)
    assert (figures["requests"], figures["prompt_tokens"], figures["output_tokens"]) == (5, 40, 20)
    assert figures["failed"] == {}
    assert printed.err.startswith("workload                random 5 x 8 + 4, over gRPC: 5 requests\n")
    assert [(len(r.prompt_token_ids), r.params.max_tokens, r.params.ignore_eos) for r in engine.submitted] == [
        (8, 4, True)
    ] * 5
    assert all(100 <= token < 256 for request in engine.submitted for token in request.prompt_token_ids)


async def test_conversations_are_sent_as_messages(bench: Run, engine: FakeEngine, tmp_path: Path) -> None:
    path = tmp_path / "sharegpt.json"
    path.write_text(json.dumps(CONVERSATIONS))
    report = tmp_path / "report.json"
    flags = ("--dataset", str(path), "--requests", "4", "--concurrency", "1", "--json", str(report))
    assert await bench(*flags) == 0
    sent = {bytes(request.prompt_token_ids).decode() for request in engine.submitted}
    assert len(sent) == 4
    assert sent <= {f"<user>turn {number}<assistant>" for number in range(6)}
    # "yes" is three tokens of the fake tokenizer, which are bytes.
    assert [request.params.max_tokens for request in engine.submitted] == [3] * 4
    assert json.loads(report.read_text())["output_tokens"] == 12


async def test_requests_that_fail_are_counted_and_make_the_exit_code(
    bench: Run, engine: FakeEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    reserve, seen = engine.reserve, iter(range(100))

    def refuse_one(tokens: int, tenant: str):  # type: ignore[no-untyped-def]
        # The first is refused at each of its three attempts; one at a time, the first is alone.
        if next(seen) < 3:
            raise QueueFullError(20, 4, 100, 5, 0.01)
        return reserve(tokens, tenant)

    engine.reserve = refuse_one  # type: ignore[method-assign]
    assert await bench("--random", "3,8,4", "--concurrency", "1") == 1
    assert "failed                  1 KV_BUDGET_EXHAUSTED\n" in capsys.readouterr().out


async def test_when_all_fail_it_is_the_error_of_one(
    bench: Run, engine: FakeEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    engine.reserve_error = QueueFullError(20, 4, 100, 5, 0.01)
    assert await bench("--random", "3,8,4") == 3
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "trying again" in printed.err
    assert printed.err.splitlines()[-1].startswith("weir bench: ")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--random", "1,60,60"], "takes 119 tokens of context, and the model has 64"),
        (["--random", "1,2,3", "--requests", "4"], "--requests is for --dataset"),
        (["--random", "1,2,3", "--json", "/nonexistent/file"], "--json: /nonexistent/file cannot be written"),
        (["--random", "1,2,3", "--max-running", "4"], "--max-running is for an engine in this process"),
        (["--workload", "/nonexistent"], "/nonexistent: No such file or directory"),
        (["--workload", __file__], "is not JSON"),
        (["--dataset", "/nonexistent"], "/nonexistent: No such file or directory"),
    ],
)
async def test_what_can_never_run_exits_with_2_and_one_sentence(
    bench: Run, engine: FakeEngine, capsys: pytest.CaptureFixture[str], flags: list[str], said: str
) -> None:
    assert await bench(*flags) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("weir bench: ")
    assert said in line
    assert engine.submitted == []


def test_nobody_listening_is_said_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--random", "1,2,3", "--target", "127.0.0.1:1"]) == 3
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("weir bench: no server answers at 127.0.0.1:1: ")


async def test_a_server_that_loads_is_waited_for(loading: App, engine: FakeEngine) -> None:
    arguments = ["bench", "--random", "2,4,2", "--target", f"127.0.0.1:{loading.port}"]
    running = asyncio.create_task(asyncio.to_thread(main, arguments))
    await asyncio.sleep(0.3)
    assert not running.done()
    engine.load()
    assert await running == 0


def test_an_engine_in_this_process_needs_a_model_that_is_there(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Flags of an engine weigh more than the environment's server.
    monkeypatch.setenv("WEIR_TARGET", "127.0.0.1:1")
    assert main(["bench", "--random", "1,2,3", "--model", "/nonexistent"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("weir bench: ")
    assert "/nonexistent" in line
    assert main(["bench", "--random", "1,2,3"]) == 3
    assert "no server answers at 127.0.0.1:1" in capsys.readouterr().err


CLIENT_ONLY = """
import sys
for name in ("torch", "numpy", "tokenizers", "safetensors", "jinja2", "pydantic", "yaml", "psutil", "grpc_reflection",
             "grpc_channelz", "xds", "opentelemetry", "prometheus_client", "uvloop", "triton", "transformers"):
    sys.modules[name] = None
from weir.cli import main
sys.exit(main(sys.argv[1:]))
"""


async def test_the_clients_install_alone_measures_a_server(app: App) -> None:
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", CLIENT_ONLY, "bench", "--random", "3,8,4", "--target", f"127.0.0.1:{app.port}"],
        check=False,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "3 requests" in done.stdout


def test_the_clients_install_alone_says_what_an_engine_would_need() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CLIENT_ONLY, "bench", "--random", "3,8,4"], check=False, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (2, "")
    [line] = done.stderr.splitlines()
    assert "pip install 'weir-llm[server]'; or name a server with --target or WEIR_TARGET" in line
