"""What the worst requests, legal and not, do to their neighbours: the longest gap of a stream, slow health answers.

    python -m benchmarks.hostile --seconds 3 --runs 3 --clients 1 6 [--only chat] [--write docs/reliability.md]

One stream runs, health is asked every 20 ms and a short question every 100 ms, while clients in processes of their own
send one kind of request again and again. Each figure is the median of the runs' longest. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import multiprocessing
import os
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Event
from pathlib import Path

import grpc
import psutil
from grpc_health.v1 import health_pb2, health_pb2_grpc
from weir.v1 import inference_pb2 as pb
from weir.v1 import inference_pb2_grpc

from benchmarks.local_server import serving
from benchmarks.markdown import replace_between, table

SERVICE = "/weir.v1.InferenceService/"
HEADER = ["request", "clients", "longest gap s", "slowest health s", "slowest question s", "server MiB", "sent"]
_MODEL = Path("models/smollm2-135m-instruct")
# Short steps, so that a gap is the server's and not that of a long chunk of somebody's prefill.
_FLAGS = ("--kv-memory", "768MiB", "--max-batch-tokens", "96")
_LENGTH = 8192
_BOUND = 16 * _LENGTH
_MESSAGE = 4 * 2**20 - 256
_TEXT = "The river was wide and slow. "
_PAUSE_S = 0.05
_CLIENT_NICENESS = 10
_OWN_CONNECTION = ("grpc.use_local_subchannel_pool", 1)


@dataclass(frozen=True, slots=True)
class Attack:
    """A request as bytes, because no client library would make some of these, and the method it goes to."""

    name: str
    method: str
    message: bytes


@dataclass(slots=True)
class Seen:
    """What the neighbours saw while one kind of request was sent; seconds."""

    gaps: list[float] = field(default_factory=list)
    health: list[float] = field(default_factory=list)
    questions: list[float] = field(default_factory=list)
    rss_bytes: int = 0
    sent: int = 0

    @property
    def longest_s(self) -> tuple[float, float, float]:
        """The longest gap, the slowest health answer and the slowest question."""
        return max(self.gaps), max(self.health), max(self.questions)


def row(name: str, clients: int, runs: Sequence[Seen]) -> list[str]:
    """The cells of HEADER."""
    seconds = [statistics.median(column) for column in zip(*(run.longest_s for run in runs), strict=True)]
    rss, sent = max(run.rss_bytes for run in runs), sum(run.sent for run in runs)
    return [name, str(clients), *(f"{s:.2f}" for s in seconds), str(rss >> 20), str(sent)]


def attacks() -> Iterator[Attack]:
    """As large as messages may be, as large as prompts may be, as many parts as fit, as long as the model takes."""
    for name, prompt in _prompts().items():
        params = pb.SamplingParams(max_tokens=1).SerializeToString()
        yield Attack(name, "Complete", _field(3, prompt) + _field(4, params))
    for name, params in {
        "4.2 M stop token ids": _field(13, b"\1" * _MESSAGE),
        "2.1 M stop strings": _field(12, b"") * (_MESSAGE // 2),
        "2.1 M logit_bias entries": _field(10, b"") * (_MESSAGE // 2),
    }.items():
        yield Attack(name, "Complete", _field(3, _field(1, b"x")) + _field(4, params))
    yield Attack("2.1 M prompts", "Complete", _field(3, b"") * (_MESSAGE // 2))
    huge = pb.CompleteRequest(prompt=pb.Prompt(text="x"), n=2**31 - 1)
    yield Attack("n = 2147483647", "Complete", huge.SerializeToString())
    for name, text, with_bytes in (
        ("Tokenize, text of 131 kB", _words(_BOUND), False),
        ("Tokenize, 131 k tokens with bytes", b"7" * _BOUND, True),
        ("Tokenize, text of 3.9 MB", _words(3_900_000), False),
    ):
        message = pb.TokenizeRequest(prompt=pb.Prompt(text=text.decode()), with_bytes=with_bytes)
        yield Attack(name, "Tokenize", message.SerializeToString())


def _prompts() -> dict[str, bytes]:
    turn = _field(1, pb.ChatMessage(role="user", content="Hi").SerializeToString())
    return {
        "text of 3.9 MB": _field(1, _words(3_900_000)),
        "text of 630 kB, 8 k tokens": _field(1, b"#" * 80 * 7800),
        "text of 131 kB, 131 k tokens": _field(1, b"7" * _BOUND),
        "text of 131 kB, 2 k tokens": _field(1, b"#" * _BOUND),
        "text of 8190 tokens": _field(1, b"7" * 8190),
        "chat, role of 4 MB": _field(3, _field(1, _field(1, b"x" * _MESSAGE))),
        "chat, content of 131 kB": _field(3, _field(1, _field(1, b"user") + _field(2, b"7" * (_BOUND - 64)))),
        "chat, 2.1 M empty turns": _field(3, _field(1, b"") * (_MESSAGE // 2)),
        "chat, 100 k empty turns": _field(3, _field(1, b"") * 100_000),
        "chat, 8192 turns": _field(3, turn * _LENGTH),
        "4.2 M token ids": _field(2, _field(1, b"\1" * _MESSAGE)),
        "8192 token ids": pb.Prompt(token_ids=pb.TokenIds(ids=range(_LENGTH))).SerializeToString(),
    }


def _words(size: int) -> bytes:
    return (_TEXT * (size // len(_TEXT) + 1)).encode()[:size]


def _field(number: int, payload: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(payload)) + payload


def _varint(value: int) -> bytes:
    low, rest = value & 127, value >> 7
    return bytes([low | 128]) + _varint(rest) if rest else bytes([low])


def send(target: str, attack: Attack, seconds: float, ready: Event, sent: Synchronized[int]) -> None:
    """One client's process: the same request until the time is over, whatever the answers are.

    It pauses between two, and gives way to the server: what is measured is how long one request holds up others, and
    not what a flood costs on a machine that the flood shares.
    """
    os.nice(_CLIENT_NICENESS)
    options = [_OWN_CONNECTION, ("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
    with grpc.insecure_channel(target, options=options) as channel:
        call = channel.unary_unary(SERVICE + attack.method)
        grpc.channel_ready_future(channel).result(30)
        ready.wait()
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            with contextlib.suppress(grpc.RpcError):
                call(attack.message, timeout=max(left, 0.01))
            sent.value += 1
            time.sleep(_PAUSE_S)


async def watch(target: str, attack: Attack | None, clients: int, seconds: float, server: psutil.Process) -> Seen:
    """Let `clients` send one kind of request, and measure their neighbours meanwhile."""
    context = multiprocessing.get_context("spawn")
    ready, counts = context.Event(), [context.Value("q", 0) for _ in range(clients)]
    attackers = [
        context.Process(target=send, args=(target, attack, seconds, ready, count), daemon=True) for count in counts
    ]
    for attacker in attackers:
        attacker.start()
    seen = Seen()
    async with (
        grpc.aio.insecure_channel(target) as channel,
        grpc.aio.insecure_channel(target, [_OWN_CONNECTION]) as own,
    ):
        stub, health = inference_pb2_grpc.InferenceServiceStub(channel), health_pb2_grpc.HealthStub(own)
        stream = stub.Generate(_story())
        await stream.read()
        await asyncio.sleep(3.0 if attackers else 0.0)
        ready.set()
        end = time.monotonic() + seconds
        await asyncio.gather(
            _gaps(stream, end, seen.gaps),
            _every(0.02, end, lambda: health.Check(health_pb2.HealthCheckRequest(service="liveness")), seen.health),
            _every(0.1, end, lambda: stub.Complete(_question()), seen.questions),
            _memory(server, end, seen),
        )
        stream.cancel()
    for attacker in attackers:
        attacker.join(30)
        attacker.kill()
    seen.sent = sum(count.value for count in counts)
    return seen


def _story() -> pb.GenerateRequest:
    params = pb.SamplingParams(max_tokens=7000, ignore_eos=True, temperature=0)
    return pb.GenerateRequest(prompt=pb.Prompt(text="Once upon a time"), params=params)


def _question() -> pb.CompleteRequest:
    params = pb.SamplingParams(max_tokens=1)
    return pb.CompleteRequest(prompt=pb.Prompt(text="Why is the sky blue?"), params=params, priority=0)


async def _gaps(stream: grpc.aio.UnaryStreamCall, end: float, gaps: list[float]) -> None:
    last = time.monotonic()
    while last < end:
        await stream.read()
        now = time.monotonic()
        gaps.append(now - last)
        last = now


async def _every(interval_s: float, end: float, ask: Callable[[], Awaitable[object]], seen: list[float]) -> None:
    while (began := time.monotonic()) < end:
        with contextlib.suppress(grpc.RpcError):
            await ask()
        took = time.monotonic() - began
        seen.append(took)
        await asyncio.sleep(max(0.0, interval_s - took))


async def _memory(server: psutil.Process, end: float, seen: Seen) -> None:
    while time.monotonic() < end:
        seen.rss_bytes = max(seen.rss_bytes, server.memory_info().rss)
        await asyncio.sleep(0.05)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print, and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 6])
    parser.add_argument("--only", default="", help="kinds whose name has this in it")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the table into this page")
    args = parser.parse_args(argv)
    chosen: list[tuple[Attack | None, int]] = [(None, 0)]
    chosen += [(attack, clients) for attack in attacks() if args.only in attack.name for clients in args.clients]
    rows = []
    with serving(_MODEL, *_FLAGS) as target:
        [server] = [child for child in psutil.Process().children() if "serve" in child.cmdline()]
        _wait_ready(target)
        for attack, clients in chosen:
            runs = [asyncio.run(watch(target, attack, clients, args.seconds, server)) for _ in range(args.runs)]
            rows.append(row("nothing" if attack is None else attack.name, clients, runs))
            print(" | ".join(rows[-1]), flush=True)
        ending = time.monotonic()
    print(f"the server ended {time.monotonic() - ending:.1f} s after SIGTERM")
    if args.write:
        replace_between(args.write, "hostile", table(HEADER, rows))


def _wait_ready(target: str) -> None:
    with grpc.insecure_channel(target) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest(service="readiness")
        while health.Check(request, wait_for_ready=True).status != health_pb2.HealthCheckResponse.SERVING:
            time.sleep(0.1)


if __name__ == "__main__":
    main()
