"""SIGTERM and Ctrl-C at any moment of a process's life, also where no handler means that they are ignored."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from weir.client import UnavailableError

from tests.contract.server_process import ServerProcess

pytestmark = pytest.mark.slow
# What the kernel does for the first process of a container: no handler, no signal.
IGNORED = ("env", "--ignore-signal=TERM", "--ignore-signal=INT")
PROMPT = [5, 6, 7, 8]


def first_of_a_container() -> Sequence[str]:
    """A command that makes what it runs process 1 of a PID namespace; without the right to, one that comes near."""
    unshare = ("unshare", "--pid", "--fork", "--kill-child")
    allowed = subprocess.run([*unshare, "true"], check=False, capture_output=True).returncode == 0
    return unshare if allowed else IGNORED


def wait_until(condition: Callable[[], object], timeout_s: float = 20) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def handles(pid: int, number: signal.Signals) -> bool:
    """Whether the process has a handler for the signal."""
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    caught = next(line for line in status if line.startswith("SigCgt:"))
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def marked(mark: str) -> list[int]:
    """The processes that have `mark` in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and mark.encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


class Started:
    """A server of which every process can be found again."""

    def __init__(self, folder: Path, prefix: Sequence[str]) -> None:
        self._mark = uuid.uuid4().hex
        self.server = ServerProcess(folder, prefix=prefix, env={"WEIR_TEST_MARK": self._mark})
        self.pid = self.server.process.pid
        if prefix and prefix[0] == "unshare":
            wait_until(lambda: children(self.server.process.pid))
            [self.pid] = children(self.server.process.pid)

    def end(self) -> int:
        """The exit code, once no process is left."""
        code = self.server.process.wait(timeout=20)
        wait_until(lambda: not marked(self._mark))
        return code


@pytest.mark.parametrize("after_s", [0.0, 0.2, 0.5, 1.0, 2.0, 5.0])
def test_sigterm_at_any_moment_of_the_start_ends_the_first_process_of_a_container(
    tmp_path: Path, after_s: float
) -> None:
    started = Started(tmp_path, first_of_a_container())
    with started.server:
        wait_until(lambda: handles(started.pid, signal.SIGTERM))
        time.sleep(after_s)
        os.kill(started.pid, signal.SIGTERM)
        assert started.end() == 0
    assert "Traceback" not in started.server.log_file.read_text()


def test_the_handler_is_there_before_anything_large_is_imported(tmp_path: Path) -> None:
    started = Started(tmp_path, IGNORED)
    with started.server:
        wait_until(lambda: handles(started.pid, signal.SIGTERM))
        os.kill(started.pid, signal.SIGSTOP)
        assert "pydantic" not in Path(f"/proc/{started.pid}/maps").read_text()
        os.kill(started.pid, signal.SIGTERM)
        os.kill(started.pid, signal.SIGCONT)
        assert started.end() == 0


@pytest.mark.parametrize("after_s", [0.3, 1.0, 1.6, 2.5])
def test_ctrl_c_reaches_the_engine_too_and_leaves_no_traceback(tmp_path: Path, after_s: float) -> None:
    started = Started(tmp_path, ("setsid",))
    with started.server:
        wait_until(lambda: handles(started.pid, signal.SIGTERM))
        time.sleep(after_s)
        os.killpg(started.pid, signal.SIGINT)
        assert started.end() == 0
    assert "Traceback" not in started.server.log_file.read_text()


def test_a_second_sigterm_cuts_what_runs_and_ends_the_process(tmp_path: Path) -> None:
    started = Started(tmp_path, first_of_a_container())
    with started.server, started.server.ready() as client:
        stream = client.generate(token_ids=PROMPT, max_tokens=4000, ignore_eos=True)
        next(stream)
        os.kill(started.pid, signal.SIGTERM)
        wait_until(lambda: not client.health("readiness"))
        os.kill(started.pid, signal.SIGTERM)
        with pytest.raises(UnavailableError) as cut:
            list(stream)
        assert cut.value.reason == "DRAINING"
        assert started.end() == 0


def test_a_second_sigterm_does_not_wait_for_an_engine_that_hangs(tmp_path: Path) -> None:
    started = Started(tmp_path, IGNORED)
    with started.server, started.server.ready() as client:
        stream = client.generate(token_ids=PROMPT, max_tokens=4000, ignore_eos=True)
        next(stream)
        os.kill(started.server.engine_pid(), signal.SIGSTOP)
        os.kill(started.pid, signal.SIGTERM)
        wait_until(lambda: not client.health("readiness"))
        os.kill(started.pid, signal.SIGTERM)
        assert started.end() == 0


@pytest.mark.parametrize("work", ["time.sleep(60)", "asyncio.run(in_thread())"])
def test_threads_that_still_work_do_not_keep_the_process(work: str) -> None:
    program = f"""
import asyncio, threading, time
from concurrent.futures import ThreadPoolExecutor
from weir.server.signals import end_within

async def in_thread():
    asyncio.get_running_loop().run_in_executor(None, time.sleep, 60)

end_within(0.1, 7)
ThreadPoolExecutor().submit(time.sleep, 60)
{work}
"""
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=30).returncode == 7


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (["generate", "--target", "127.0.0.1:1", "--timeout", "60", "-"], 143),
        (["chat", "--target", "127.0.0.1:1"], 143),
        (["top", "--target", "127.0.0.1:1"], 143),
    ],
)
def test_sigterm_ends_every_other_command_too(command: list[str], code: int) -> None:
    process = subprocess.Popen(
        [*IGNORED, sys.executable, "-m", "weir.cli", *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: handles(process.pid, signal.SIGTERM))
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == code
    finally:
        process.kill()


def test_the_sidecar_ends_on_sigterm_from_its_first_line_on() -> None:
    process = subprocess.Popen([*IGNORED, sys.executable, "-m", "weir.cli", "sidecar"], stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: handles(process.pid, signal.SIGTERM))
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 0
    finally:
        process.kill()
