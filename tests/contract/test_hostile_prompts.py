"""Prompts made to stop a server, sent to a real one with a real tokenizer; a stream runs meanwhile and is not hurt."""

from __future__ import annotations

import contextlib
import json
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import psutil
import pytest
from weir.client import Client, InvalidRequestError

from tests.contract.server_process import CONFIG, ServerProcess
from tests.contract.test_limits import complete, field, turns
from tests.unit.models import vocabularies

pytestmark = pytest.mark.slow
SERVICE = "/weir.v1.InferenceService/"
MESSAGE = 4 * 2**20 - 256
# A turn that says so takes for ever.
TEMPLATE = (
    "{% for m in messages %}{% if m.content == 'spin' %}"
    "{% for a in range(90000) %}{% for b in range(90000) %}{% for c in range(90000) %}{% endfor %}{% endfor %}"
    "{% endfor %}{% endif %}<|user|>{{ m.role }}: {{ m.content }}</s>{% endfor %}"
)
SPIN = [{"role": "user", "content": "spin"}]
HOSTILE = {
    "a text of 4 MB": ("Complete", field(3, field(1, b"x" * MESSAGE))),
    "as many tokens as bytes": ("Complete", field(3, field(1, b"\x01" * 65536))),
    "a role of 4 MB": ("Complete", field(3, field(3, field(1, field(1, b"x" * MESSAGE))))),
    "two million turns": ("Complete", field(3, turns(MESSAGE // 2))),
    "as many turns as bytes allow": ("Complete", field(3, turns(32768))),
    "four million token ids": ("Complete", field(3, field(2, field(1, b"\x01" * MESSAGE)))),
    "four million stop ids": ("Complete", complete() + field(4, field(13, b"\x01" * MESSAGE))),
    "two million stop strings": ("Complete", field(3, field(1, b"x")) + field(4, field(12, b"") * (MESSAGE // 2))),
    "two million biases": ("Complete", field(3, field(1, b"x")) + field(4, field(10, b"") * (MESSAGE // 2))),
    "two million prompts": ("Complete", field(3, b"") * (MESSAGE // 2)),
    "two billion choices": ("Complete", complete(n=2**31 - 1)),
    "a text of 4 MB to count": ("Tokenize", field(2, field(1, b"x" * MESSAGE))),
    "two million turns to count": ("Tokenize", field(2, turns(MESSAGE // 2))),
}


def with_tokenizer(model: Path) -> None:
    (model / "config.json").write_text(json.dumps(CONFIG | {"vocab_size": 512}))
    vocabularies.save(vocabularies.byte_level(), model, TEMPLATE)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("model")
    with ServerProcess(folder, complete=with_tokenizer) as server:
        yield server
        assert server.terminate() == 0


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[Client]:
    with server.ready() as client:
        yield client


def test_a_stream_outlives_every_hostile_request_and_each_of_them_is_refused(
    server: ServerProcess, client: Client
) -> None:
    """All of them at once, three times over; afterwards the server holds no more memory than before."""
    alone = client.complete("the river", max_tokens=400, temperature=0, ignore_eos=True)
    stream = client.generate("the river", max_tokens=400, temperature=0, ignore_eos=True)
    next(stream)
    process = psutil.Process(server.process.pid)
    before = process.memory_info().rss
    codes: dict[str, set[grpc.StatusCode]] = {name: set() for name in HOSTILE}
    senders = [threading.Thread(target=send_thrice, args=(server.target, name, codes[name])) for name in HOSTILE]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()
    assert codes == {name: {grpc.StatusCode.INVALID_ARGUMENT} for name in HOSTILE}
    assert process.memory_info().rss - before < 200 * 2**20
    for _ in stream:
        pass
    assert stream.usage is not None
    assert stream.usage.completion_tokens == 400
    again = client.complete("the river", max_tokens=400, temperature=0, ignore_eos=True)
    assert again.token_ids == alone.token_ids
    assert client.budget().queued_tokens == 0


def send_thrice(target: str, name: str, codes: set[grpc.StatusCode]) -> None:
    method, message = HOSTILE[name]
    options = [("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(target, options=options) as channel:
        for _ in range(3):
            with contextlib.suppress(grpc.RpcError):
                call = channel.unary_unary(SERVICE + method).future(message)
                codes.add(call.code())


def test_a_template_without_end_is_refused_and_holds_up_nobody(client: Client) -> None:
    with client.generate("the river", max_tokens=3000, ignore_eos=True) as stream:
        next(stream)
        with pytest.raises(InvalidRequestError) as refused:
            client.complete(messages=SPIN)
        assert [violation.field for violation in refused.value.violations] == ["prompt.chat"]
        assert client.complete(messages=[{"role": "user", "content": "x"}], max_tokens=1).usage.completion_tokens == 1
        next(stream)


def test_a_killed_tokenizer_is_replaced_beside_running_streams(server: ServerProcess, client: Client) -> None:
    stream = client.generate("the river", max_tokens=1000, ignore_eos=True, temperature=0)
    next(stream)
    expected = client.tokenize("the river runs")
    for _ in range(3):
        for child in tokenizers(server):
            child.kill()
        assert client.tokenize("the river runs") == expected
        assert client.tokenize("the river runs " * 4000)[: len(expected) - 1] == expected[:-1]
    for _ in stream:
        pass
    assert stream.usage is not None
    assert stream.usage.completion_tokens == 1000


def test_sigterm_does_not_wait_for_prompts_that_are_tokenised(tmp_path: Path) -> None:
    flags = ("--tokenizer-timeout", "1h", "--drain-timeout", "100ms")
    with ServerProcess(tmp_path, *flags, complete=with_tokenizer) as server, server.ready() as client:
        children = psutil.Process(server.process.pid).children(recursive=True)
        stopped = tokenizers(server)
        assert len(stopped) == 2
        for child in stopped:
            child.suspend()
        calls = [threading.Thread(target=swallow, args=(client, method)) for method in ("complete", "tokenize")]
        for call in calls:
            call.start()
        while client.budget().queued_requests == 0:
            pass
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(timeout=60) == 0
        for call in calls:
            call.join()
        assert psutil.wait_procs(children, timeout=30)[1] == []


def tokenizers(server: ServerProcess) -> list[psutil.Process]:
    engine, found = server.engine_pid(), []
    for child in psutil.Process(server.process.pid).children():
        with contextlib.suppress(psutil.Error):
            if child.pid != engine and "spawn_main" in " ".join(child.cmdline()):
                found.append(child)
    return found


def swallow(client: Client, method: str) -> None:
    with contextlib.suppress(Exception):
        getattr(client, method)("the river")
