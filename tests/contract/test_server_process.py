"""The real engine behind the real server: what the scripted engine of the other tests stands for."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from weir.client import Client, DeadlineError, EngineFailedError, InvalidRequestError, RequestCancelledError
from weir.client.values import Budget
from weir.v1 import inference_pb2 as pb

from tests.contract.decode import eventually
from tests.contract.raw_client import RawClient
from tests.contract.server_process import ServerProcess

pytestmark = pytest.mark.slow
PROMPT = [5, 6, 7, 8]
# So many tokens that a request which is not cancelled outlasts every wait below.
ENDLESS = 4000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    server = ServerProcess(tmp_path_factory.mktemp("model"))
    yield server
    assert server.terminate() == 0


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[Client]:
    with server.ready() as client:
        yield client


def wait_for(client: Client, condition: Callable[[Budget], bool]) -> Budget:
    deadline = time.monotonic() + 30
    while not condition(budget := client.budget()):
        assert time.monotonic() < deadline, budget
        time.sleep(0.01)
    return budget


def assert_everything_is_back(client: Client) -> None:
    """Blocks and queue are empty, and the engine has stopped stepping for the request long before its end."""
    idle = wait_for(client, lambda budget: budget.running_requests == 0)
    assert (idle.kv_used_tokens, idle.queued_requests, idle.queued_tokens) == (0, 0, 0)
    assert idle.kv_free_tokens + idle.kv_cached_tokens == idle.kv_total_tokens
    time.sleep(0.1)
    assert client.budget().step == idle.step


def test_unary_and_stream_give_the_same_tokens(client: Client) -> None:
    whole = client.complete(token_ids=PROMPT, max_tokens=20, temperature=0, ignore_eos=True)
    stream = client.generate(token_ids=PROMPT, max_tokens=20, temperature=0, ignore_eos=True)
    assert tuple(token for delta in stream for token in delta.token_ids) == whole.token_ids
    assert len(whole.token_ids) == 20
    assert whole.finish_reason == "length"
    assert stream.usage is not None
    assert (stream.usage.prompt_tokens, stream.usage.completion_tokens) == (4, 20)


def test_closing_a_stream_gives_its_blocks_back(client: Client) -> None:
    with client.generate(token_ids=PROMPT, max_tokens=ENDLESS, ignore_eos=True) as stream:
        next(stream)
        assert client.budget().kv_used_tokens > 0
    assert_everything_is_back(client)


def test_a_deadline_gives_its_blocks_back(client: Client) -> None:
    with pytest.raises(DeadlineError):
        client.complete(token_ids=PROMPT, max_tokens=ENDLESS, ignore_eos=True, timeout_s=0.3)
    assert_everything_is_back(client)


def test_cancel_by_id_gives_its_blocks_back(client: Client) -> None:
    stream = client.generate(token_ids=PROMPT, max_tokens=ENDLESS, ignore_eos=True, request_id="r")
    next(stream)
    assert client.cancel("r")
    with pytest.raises(RequestCancelledError):
        list(stream)
    assert_everything_is_back(client)


def test_a_client_that_is_killed_gives_its_blocks_back(client: Client, server: ServerProcess) -> None:
    program = (
        "import sys; from weir.client import Client; "
        f"stream = Client('{server.target}').generate(token_ids={PROMPT}, max_tokens={ENDLESS}, ignore_eos=True); "
        "print(next(stream).token_ids, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as victim:
        assert victim.stdout is not None
        assert victim.stdout.readline()
        assert client.budget().running_requests == 1
        victim.kill()
    assert_everything_is_back(client)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"token_ids": []}, "prompt"),
        ({"token_ids": [256]}, "prompt"),
        ({"token_ids": [1] * 4097}, "prompt"),
        ({"token_ids": PROMPT, "max_tokens": 4094}, "max_tokens"),
        ({"token_ids": PROMPT, "max_tokens": 0}, "max_tokens"),
        ({"token_ids": PROMPT, "temperature": -1}, "temperature"),
        ({"token_ids": PROMPT, "top_p": 0}, "top_p"),
        ({"token_ids": PROMPT, "top_p": 1.5}, "top_p"),
        ({"token_ids": PROMPT, "model": "other"}, "model"),
        ({"prompt": "text"}, "prompt.text"),
    ],
)
def test_bad_input_is_named_and_harms_nothing(client: Client, options: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        client.complete(**options)  # type: ignore[arg-type]
    assert [violation.field.removeprefix("params.") for violation in caught.value.violations] == [field]
    assert client.budget().queued_tokens == 0
    assert len(client.complete(token_ids=PROMPT, max_tokens=1).token_ids) == 1


def test_sigterm_during_a_stream_lets_it_finish(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path)
    with server.ready() as client:
        stream = client.generate(token_ids=PROMPT, max_tokens=200, ignore_eos=True)
        first = next(stream)
        server.process.send_signal(signal.SIGTERM)
        tokens = [*first.token_ids, *(token for delta in stream for token in delta.token_ids)]
    assert len(tokens) == 200
    assert server.process.wait(timeout=60) == 0


def test_a_killed_engine_fails_its_requests_and_ends_the_server_with_1(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path)
    with server.ready() as client:
        stream = client.generate(token_ids=PROMPT, max_tokens=ENDLESS, ignore_eos=True)
        next(stream)
        os.kill(server.engine_pid(), signal.SIGKILL)
        with pytest.raises(EngineFailedError) as caught:
            list(stream)
    assert "-9" in caught.value.message
    assert server.process.wait(timeout=60) == 1


def test_the_scores_of_a_long_prompt_are_the_same_in_many_messages_and_in_one(client: Client) -> None:
    prompt = [2 + number % 250 for number in range(1000)]
    whole = client.complete(token_ids=prompt, max_tokens=1, temperature=0, prompt_logprobs=20)
    stream = client.generate(token_ids=prompt, max_tokens=1, temperature=0, prompt_logprobs=20)
    assert len(list(stream)) == 1
    assert stream.prompt_logprobs == whole.prompt_logprobs
    assert [score.token_id for score in whole.prompt_logprobs[1:]] == prompt[1:]
    assert {len(score.top) for score in whole.prompt_logprobs[1:]} == {20}


async def test_streams_that_nobody_reads_hold_neither_kv_nor_the_end_of_the_process(tmp_path: Path) -> None:
    params = pb.SamplingParams(max_tokens=ENDLESS, ignore_eos=True, logprobs=20)
    prompt = pb.Prompt(token_ids=pb.TokenIds(ids=PROMPT))
    endless = pb.GenerateRequest(prompt=prompt, params=params).SerializeToString()
    method = "/weir.v1.InferenceService/Generate"
    with ServerProcess(tmp_path, "--unread-timeout", "2s", "--drain-timeout", "1s") as server:
        client = await asyncio.to_thread(server.ready)
        port = int(server.target.rpartition(":")[2])
        async with RawClient(port, window=0) as cut, RawClient(port, window=0) as unread:
            streams = [cut.call(method, endless) for _ in range(6)]
            await eventually(lambda: client.budget().running_requests == 6, timeout_s=30)
            await eventually(lambda: client.budget().running_requests == 0, timeout_s=30)
            assert client.budget().kv_used_tokens == 0
            for stream in streams[:3]:
                cut.grant(stream, 2**20)
            await eventually(lambda: cut.ended >= set(streams[:3]))
            assert {cut.headers[stream]["grpc-status"] for stream in streams[:3]} == {"8"}
            for _ in range(6):
                unread.call(method, endless)
            await eventually(lambda: client.budget().running_requests == 6, timeout_s=30)
            client.close()
            assert await asyncio.to_thread(server.terminate) == 0
    log = (tmp_path / "server.log").read_text()
    assert "cutting 6 requests" in log
    assert "ERROR" not in log
    assert "Traceback" not in log
