"""`make demo`: start a server, stream the answers to three questions asked at once, and show what the engine did."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from weir.client import AsyncClient, Budget

QUESTIONS = (
    "What is the capital of France?",
    "Why is the sky blue? Answer in two sentences.",
    "Write a haiku about a river.",
)
MAX_TOKENS = 96
READY_TIMEOUT_S = 300.0
STOP_TIMEOUT_S = 30.0
LINE_WIDTH = 88


@dataclass
class Answer:
    """One question's stream, as the client saw it."""

    number: int
    tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    ttft_s: float = 0.0
    total_s: float = 0.0


def main() -> int:
    """Exit code 0 when all three questions were answered and the server stopped cleanly."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        log = Path(scratch) / "server.log"
        with _server(args.model, log) as (process, target):
            try:
                asyncio.run(_converse(process, target))
            except Exception as error:
                print(f"\nthe demo failed: {error!r}\nthe server's log:\n{log.read_text()[-4000:]}", file=sys.stderr)
                return 1
            process.send_signal(signal.SIGTERM)
            code = process.wait(STOP_TIMEOUT_S)
        print(f"\nserver stopped with exit code {code}")
        return code


@contextlib.contextmanager
def _server(model: str, log: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    port = _free_port()
    command = [
        *(sys.executable, "-m", "weir.cli", "serve", "--model", model, "--host", "127.0.0.1", "--port", str(port)),
        *("--admin-address", "127.0.0.1:0", "--metrics-port", "0", "--metrics-host", "127.0.0.1"),
    ]
    print(f"starting the server: weir {' '.join(command[3:])}")
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        yield process, f"127.0.0.1:{port}"
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


async def _converse(process: subprocess.Popen[bytes], target: str) -> None:
    async with AsyncClient(target) as client:
        began = time.monotonic()
        await _wait_ready(client, process)
        model = await client.model()
        print(
            f"ready after {time.monotonic() - began:.1f} s: {model.name} ({model.architecture}, {model.dtype}, "
            f"{model.kernels} kernels), room for {model.kv_total_tokens} KV tokens\n"
        )
        for number, question in enumerate(QUESTIONS, 1):
            print(f"[{number}] > {question}")
        print()
        before = await client.budget()
        seen = _Seen()
        watching = asyncio.create_task(seen.watch(client))
        began = time.monotonic()
        answers = await asyncio.gather(*(_ask(client, n, question) for n, question in enumerate(QUESTIONS, 1)))
        wall_s = time.monotonic() - began
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching
        _print_table(answers, before, await client.budget(), seen, wall_s)


async def _wait_ready(client: AsyncClient, process: subprocess.Popen[bytes]) -> None:
    waiting = asyncio.create_task(client.wait_ready(READY_TIMEOUT_S))
    while not waiting.done():
        if process.poll() is not None:
            waiting.cancel()
            raise RuntimeError(f"the server ended with exit code {process.returncode} before it was ready")
        await asyncio.wait({waiting}, timeout=0.2)
    await waiting


class _Seen:
    """The most that the budget stream showed."""

    def __init__(self) -> None:
        self.kv_tokens = 0
        self.running = 0

    async def watch(self, client: AsyncClient) -> None:
        async for budget in client.watch_budget(min_interval_s=0.05):
            self.kv_tokens = max(self.kv_tokens, budget.kv_used_tokens)
            self.running = max(self.running, budget.running_requests)


async def _ask(client: AsyncClient, number: int, question: str) -> Answer:
    answer, line = Answer(number), ""
    stream = client.generate(messages=[{"role": "user", "content": question}], max_tokens=MAX_TOKENS, temperature=0.0)
    async with stream:
        async for delta in stream:
            answer.tokens += len(delta.token_ids)
            line = _print_whole_lines(number, line + delta.text)
    if line.strip():
        print(f"[{number}] {line}")
    usage, timings = stream.usage, stream.timings
    assert usage is not None, "a stream that ended has usage"
    assert timings is not None, "a stream that ended has timings"
    answer.prompt_tokens, answer.cached_tokens = usage.prompt_tokens, usage.cached_tokens
    answer.ttft_s, answer.total_s = timings.first_token_s, timings.total_s
    return answer


def _print_whole_lines(number: int, text: str) -> str:
    """Print what fills a line, so that three streams share a terminal; return the rest."""
    while "\n" in text or len(text) > LINE_WIDTH:
        end = text.find("\n")
        if end < 0 or end > LINE_WIDTH:
            end = text.rfind(" ", 0, LINE_WIDTH)
            end = LINE_WIDTH if end <= 0 else end
        print(f"[{number}] {text[:end]}", flush=True)
        text = text[end:].lstrip(" \n")
    return text


def _print_table(answers: list[Answer], before: Budget, after: Budget, seen: _Seen, wall_s: float) -> None:
    computed = after.computed_tokens - before.computed_tokens
    output = sum(a.tokens for a in answers)
    prefill = sum(a.prompt_tokens - a.cached_tokens for a in answers)
    steps = after.step - before.step
    print("\nquestion   prompt tokens   output tokens   TTFT ms   total ms")
    for a in answers:
        print(f"{a.number:>8}{a.prompt_tokens:>16}{a.tokens:>16}{a.ttft_s * 1e3:>10.0f}{a.total_s * 1e3:>11.0f}")
    print("\nwhat the engine did")
    for name, value in (
        ("steps", f"{steps} (mean batch {computed / max(1, steps):.1f} tokens)"),
        ("prefill tokens", str(prefill)),
        ("decode tokens", str(computed - prefill)),
        ("requests at once", str(seen.running)),
        ("peak KV use", f"{seen.kv_tokens} of {after.kv_total_tokens} tokens"),
        ("output rate", f"{output / wall_s:.0f} tokens/s"),
    ):
        print(f"  {name:<18}{value}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    sys.exit(main())
