"""The command line as a script meets it: stdout, one line on stderr, an exit code."""

from __future__ import annotations

import asyncio
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from weir.cli import COMMANDS, main
from weir.config import ServerSettings, Settings
from weir.engine.errors import QueueFullError
from weir.server.app import App

from tests.contract.decode import eventually
from tests.contract.fake_engine import FakeEngine
from tests.contract.fake_tokenizer import ByteTokenizer

Run = Callable[..., "asyncio.Future[int]"]


@pytest.fixture
def weir(app: App) -> Run:
    """Run a command against the test's server, off the event loop that serves it."""

    def run(*arguments: str) -> asyncio.Future[int]:
        return asyncio.ensure_future(
            asyncio.to_thread(main, [arguments[0], "--target", f"127.0.0.1:{app.port}", *arguments[1:]])
        )

    return run


def piped(data: bytes) -> io.TextIOWrapper:
    """Stdin that is no terminal."""
    return io.TextIOWrapper(io.BytesIO(data), encoding="utf-8")


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


async def test_choices_are_printed_whole_and_one_after_the_other(weir: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """The fake model makes both at once, a token of each a step."""
    assert await weir("generate", "hello", "-n", "2", "--max-tokens", "3") == 0
    assert capsys.readouterr() == ("--- choice 1 of 2\nhel\n--- choice 2 of 2\nhel\n", "")


async def test_logprobs_follow_the_text(weir: Run, engine: FakeEngine, capsys: pytest.CaptureFixture[str]) -> None:
    assert await weir("generate", "hi", "--max-tokens", "2", "--logprobs", "2") == 0
    text, head, *rows = capsys.readouterr().out.splitlines()
    assert (text, head.split()) == ("hi", ["token", "logprob", "alternatives"])
    # 104 is h, 105 is i; the fake model gives each -0.5, and -2 to token 1.
    assert [row.split() for row in rows] == [
        ["104", "-0.5000", "104", "-0.5000", "1", "-2.0000"],
        ["105", "-0.5000", "105", "-0.5000", "1", "-2.0000"],
    ]
    assert engine.submitted[0].params.logprobs == 2


async def test_logit_bias_is_given_token_by_token(weir: Run, engine: FakeEngine) -> None:
    assert await weir("generate", "x", "--logit-bias", "50=-100", "--logit-bias", "7=1.5") == 0
    assert engine.submitted[0].params.logit_bias == ((7, 1.5), (50, -100.0))


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--seed", "-1"], "params.seed: must be an integer from 0 to 18446744073709551615, got -1"),
        (["--top-k", str(2**40)], "params.top_k: must be a 32-bit integer, got 1099511627776"),
        (["--tenant", "é"], "tenant: must be printable ASCII, and has U+00E9"),
        (["--tls-cert", "x"], "--tls-cert and --tls-key go together: give both or none"),
        (["--token-file", "/nonexistent"], "--token-file: /nonexistent: No such file or directory"),
        (["--tls-ca", "/nonexistent"], "--tls-ca: /nonexistent: No such file or directory"),
        (["--tls-ca", __file__], f"--tls-ca: {__file__} holds no certificate in PEM form"),
        (["--target", "http://localhost"], "target: a target is no URL; write localhost; got 'http://localhost'"),
        (["--target", "localhost:x"], "target: the port must be 1 to 65535; got 'localhost:x'"),
    ],
)
async def test_what_can_never_be_sent_exits_with_2_and_one_sentence(
    weir: Run, capsys: pytest.CaptureFixture[str], flags: list[str], said: str
) -> None:
    assert await weir("generate", "x", *flags) == 2
    assert capsys.readouterr() == ("", f"weir generate: {said}\n")


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        (["--timeout", "-1"], "must be a number above 0, got -1"),
        (["--timeout", "nan"], "must be a number above 0, got nan"),
        (["--connect-timeout", "soon"], "must be a number, got 'soon'"),
        (["--logit-bias", "a=b"], "must be ID=BIAS, as in 50=-100, got 'a=b'"),
    ],
)
def test_a_flag_that_makes_no_sense_is_refused_before_anything_starts(
    capsys: pytest.CaptureFixture[str], flag: list[str], said: str
) -> None:
    with pytest.raises(SystemExit) as exited:
        main(["generate", "x", *flag])
    assert exited.value.code == 2
    assert capsys.readouterr().err.endswith(f"{said}\n")


@pytest.mark.parametrize(("command", "arguments"), [("generate", ["-"]), ("chat", [])])
async def test_stdin_that_is_no_text_exits_with_2(
    weir: Run,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    engine: FakeEngine,
    command: str,
    arguments: list[str],
) -> None:
    monkeypatch.setattr("sys.stdin", piped(b"caf\xe9"))
    assert await weir(command, *arguments) == 2
    assert capsys.readouterr() == ("", f"weir {command}: stdin is not UTF-8: byte 3 is 0xe9\n")
    assert engine.submitted == []


async def test_an_argument_is_text_whatever_the_locale_makes_of_it(weir: Run, engine: FakeEngine) -> None:
    # As Python hands on UTF-8 in a locale that has none.
    assert await weir("generate", "日本".encode().decode("ascii", "surrogateescape"), "--max-tokens", "1") == 0
    assert bytes(engine.submitted[0].prompt_token_ids) == "日本".encode()


async def test_an_argument_that_is_no_text_exits_with_2(weir: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert await weir("generate", "caf\udce9") == 2
    assert capsys.readouterr().err == "weir generate: the prompt is not UTF-8: byte 3 is 0xe9\n"


async def test_an_error_in_the_middle_of_a_line_stands_on_a_line_of_its_own(
    weir: Run, engine: FakeEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    engine.decoding.clear()
    engine.ungated_tokens = 2
    assert await weir("generate", "hello", "--timeout", "0.5") == 3
    assert capsys.readouterr() == ("he\n", "weir generate: the timeout of 0.5 s passed\n")


async def test_a_reader_that_has_seen_enough_is_no_wrong_usage(app: App) -> None:
    """`weir generate ... | head -c 2`: the pipe is closed while there is more to write."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "weir.cli", "generate", "--target", f"127.0.0.1:{app.port}", "a" * 60),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout._transport.close()  # type: ignore[attr-defined]
    _, errors = await process.communicate()
    assert errors == b""
    assert process.returncode not in (0, 2)


async def test_the_target_may_come_from_the_environment(
    app: App, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WEIR_TARGET", f"127.0.0.1:{app.port}")
    assert await asyncio.to_thread(main, ["generate", "hi", "--max-tokens", "2"]) == 0
    assert capsys.readouterr().out == "hi\n"
    assert await asyncio.to_thread(main, ["generate", "--target", "127.0.0.1:1", "hi"]) == 3
    monkeypatch.setenv("WEIR_TARGET", "")
    with pytest.raises(SystemExit):
        main(["generate", "--help"])
    assert "WEIR_TARGET, else 127.0.0.1:50051" in " ".join(capsys.readouterr().out.split())


async def test_a_pause_before_another_attempt_is_said(
    weir: Run, engine: FakeEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    engine.reserve_error = QueueFullError(20, 4, 100, 5, 0.01)
    assert await weir("generate", "x") == 3
    *pauses, error = capsys.readouterr().err.splitlines()
    assert len(pauses) == 2
    assert all(line.startswith("weir generate: ") and line.endswith("trying again in 0.0 s") for line in pauses)
    assert "trying again" not in error


@pytest.mark.parametrize("line", ["s3cret", "tenant=gold s3cret"])
async def test_a_server_that_wants_another_token_is_told_as_a_token(
    engine: FakeEngine, tmp_path: Path, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    known, wrong = tmp_path / "known", tmp_path / "wrong"
    known.write_text(f"{line}\n")
    wrong.write_text("# comment\nguess\n")
    server = ServerSettings(host="127.0.0.1", port=0, admin_address="127.0.0.1:0", auth_tokens_file=str(known))
    app = App(Settings(server=server), engine, ByteTokenizer())
    await app.start()
    engine.load()
    await app.lifecycle.changed(0, timeout_s=5)
    call = ["generate", "--target", f"127.0.0.1:{app.port}", "hi", "--max-tokens", "2"]
    assert await asyncio.to_thread(main, call) == 2
    assert capsys.readouterr().err == "weir generate: a token is needed, and none was given: see --token-file\n"
    assert await asyncio.to_thread(main, [*call, "--token-file", str(wrong)]) == 2
    assert capsys.readouterr().err == "weir generate: the token was refused: see --token-file\n"
    assert await asyncio.to_thread(main, [*call, "--token-file", str(known)]) == 0
    assert capsys.readouterr().out == "hi\n"
    assert engine.submitted[-1].tenant == ("gold" if "gold" in line else "")
    app.request_stop()
    await app.shut_down()


async def test_grpc_prints_nothing_of_its_own(app: App) -> None:
    """TLS asked of a server without it: gRPC would log the handshake from inside."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "weir.cli", "generate", "--target", f"127.0.0.1:{app.port}", "--tls", "x"),
        stderr=asyncio.subprocess.PIPE,
        env={name: value for name, value in os.environ.items() if name != "GRPC_VERBOSITY"},
    )
    _, errors = await process.communicate()
    assert process.returncode == 3
    [line] = errors.decode().splitlines()
    assert line.startswith(f"weir generate: no server answers at 127.0.0.1:{app.port}: ")


async def test_generate_json_prints_one_object(weir: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert await weir("generate", "hello", "--max-tokens", "2", "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["text"] == "he"
    assert answer["choices"][0]["token_ids"] == [104, 101]
    assert answer["usage"] == {"prompt_tokens": 5, "completion_tokens": 2, "cached_tokens": 2}


async def test_generate_reads_stdin(
    weir: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", piped(b"piped"))
    assert await weir("generate", "-", "--max-tokens", "9") == 0
    assert capsys.readouterr().out == "piped\n"


async def test_a_request_that_can_never_succeed_exits_with_2_and_one_line(
    weir: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await weir("generate", "x", "--top-p", "1.5") == 2
    assert capsys.readouterr() == ("", "weir generate: params.top_p: must be above 0 and at most 1, got 1.5\n")


async def test_a_full_queue_exits_with_3(weir: Run, engine: FakeEngine, capsys: pytest.CaptureFixture[str]) -> None:
    engine.reserve_error = QueueFullError(20, 4, 100, 5, 0.01)
    assert await weir("generate", "x") == 3
    assert "20" in capsys.readouterr().err


async def test_a_timeout_exits_with_3(weir: Run, engine: FakeEngine) -> None:
    engine.decoding.clear()
    assert await weir("generate", "x", "--timeout", "0.1") == 3


def test_no_server_exits_with_3_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "--target", "127.0.0.1:1", "x"]) == 3
    said = capsys.readouterr().err
    assert said.startswith("weir generate: no server answers at 127.0.0.1:1: ")
    assert said.endswith("Connection refused\n")


async def test_chat_keeps_the_conversation(
    weir: Run, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", piped(b"hi\n\nbye\n"))
    assert await weir("chat", "--system", "be brief", "--max-tokens", "3") == 0
    first, second = (bytes(request.prompt_token_ids) for request in engine.submitted)
    assert first == b"<system>be brief<user>hi<assistant>"
    # The echo of the first three bytes of the template is what the fake model answered.
    assert second == b"<system>be brief<user>hi<assistant><sy<user>bye<assistant>"
    assert capsys.readouterr().out == "<sy\n<sy\n"


async def test_a_piped_conversation_ends_with_its_first_error(
    weir: Run, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody is there to ask again, and a script must hear of it."""
    engine.reserve_error = QueueFullError(20, 4, 100, 5, 0.01)
    monkeypatch.setattr("sys.stdin", piped(b"hi\nbye\n"))
    assert await weir("chat") == 3


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


LLAMA_70B = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "hidden_act": "silu",
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
    "eos_token_id": 128001,
}


@pytest.fixture
def llama_70b(tmp_path: Path) -> str:
    folder = tmp_path / "llama-70b"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA_70B))
    return str(folder)


def test_size_says_what_does_not_fit_and_what_would(llama_70b: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["size", llama_70b, "--memory", "80GiB"]) == 1
    out, err = capsys.readouterr()
    # 70,553,706,496 parameters of 2 bytes; 131,072 tokens of 320 KiB are 40 GiB, four times that is the memory besides.
    assert "70,553,706,496" in out
    assert err == (
        "weir size: llama-70b does not fit: its weights take 131.42 GiB in bfloat16, and 80 GiB are there; "
        "it would with 291.42 GiB of memory\n"
    )


def test_size_gives_scripts_the_same_as_numbers(llama_70b: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["size", llama_70b, "--memory", "2TiB", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["fits"] is True
    assert report["parameters"] == 70_553_706_496
    assert (report["pool"]["fraction"], report["whole"]["fraction"]) == (0.25, 1.0)
    # (2 TiB - 2 * 70,553,706,496) / 4 / (16 * 320 KiB) = 97,807.
    assert report["pool"]["blocks"] == (2**41 - 2 * 70_553_706_496) // 4 // (16 * 320 * 1024)
    assert main(["size", llama_70b, "--memory", "80GiB", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["what_fits"]["kv_memory_fraction"] is None
