"""Real tokenizer processes: their answers, and their ends by time, memory, signal and the end of the server."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest
from weir.config import ServerSettings
from weir.models.errors import PromptError, TokenizerError
from weir.server.tokenizer_pool import SHORT_BYTES, TokenizerPool
from weir.v1 import inference_pb2 as pb

from tests.unit.models import vocabularies

TEMPLATE = (
    "{% for m in messages %}{% if m.content == 'raise' %}{{ raise_exception('no such turn') }}{% endif %}"
    "<|user|>{{ m.role }}: {{ m.content }}</s>{% endfor %}"
)
# Takes seconds, and hundreds of megabytes.
HUGE = "7" * 4_000_000


def text(value: str) -> pb.Prompt:
    return pb.Prompt(text=value)


def chat(content: str, role: str = "user") -> pb.Prompt:
    return pb.Prompt(chat=pb.Chat(messages=[pb.ChatMessage(role=role, content=content)]))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("model")
    vocabularies.save(vocabularies.byte_level(), made, TEMPLATE)
    return made


@asynccontextmanager
async def running(folder: Path, **settings: object) -> AsyncIterator[TokenizerPool]:
    pool = TokenizerPool(folder, ServerSettings.model_validate({"tokenizer_processes": 1, **settings}))
    pool.start()
    try:
        await pool.load()
        yield pool
    finally:
        pool.close()


def processes() -> list[psutil.Process]:
    """The tokenizer processes of this one that live."""
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            if "spawn_main" in " ".join(child.cmdline()):
                found.append(child)
    return found


async def test_ids_and_bytes_are_those_of_the_tokenizer(folder: Path) -> None:
    reference = vocabularies.byte_level()
    async with running(folder) as pool:
        for value in ("the river", "", "Größe 河流 🙂\x00", "the river runs " * 20_000):
            assert list(await pool.encode(text(value))) == reference.encode(value).ids
        said = "<|user|>user: the river</s>"
        assert list(await pool.encode(chat("the river"))) == reference.encode(said, add_special_tokens=False).ids


async def test_the_table_of_bytes_comes_with_the_tokenizer(folder: Path) -> None:
    pool = TokenizerPool(folder, ServerSettings(tokenizer_processes=2))
    pool.start()
    try:
        table = await pool.load()
        assert b"".join(table[i] for i in await pool.encode(text("the river"))) == b"the river"
    finally:
        pool.close()


async def test_a_refusal_of_the_template_is_passed_on_and_the_process_stays(folder: Path) -> None:
    async with running(folder) as pool:
        [before] = processes()
        with pytest.raises(PromptError, match="no such turn"):
            await pool.encode(chat("raise"))
        assert list(await pool.encode(text("ok"))) != []
        assert processes() == [before]


async def test_a_prompt_that_takes_too_long_is_ended_and_the_next_one_is_served(folder: Path) -> None:
    async with running(folder, tokenizer_timeout_s=0.05) as pool:
        [before] = processes()
        with pytest.raises(PromptError, match=r"takes more than 0\.05 s to tokenise"):
            await pool.encode(text(HUGE))
        assert list(await pool.encode(text("the river"))) == vocabularies.byte_level().encode("the river").ids
        assert before not in processes()


@pytest.mark.parametrize("prompt", [text(HUGE), chat(HUGE)], ids=["text", "chat"])
@pytest.mark.parametrize("memory_bytes", [2**20, 40 * 2**20])
async def test_a_prompt_that_takes_more_memory_than_it_may_is_refused_and_the_next_one_is_served(
    folder: Path, prompt: pb.Prompt, memory_bytes: int
) -> None:
    async with running(folder, tokenizer_memory_bytes=memory_bytes, tokenizer_timeout_s=300) as pool:
        with pytest.raises(PromptError, match="memory"):
            await pool.encode(prompt)
        assert list(await pool.encode(text("the river"))) == vocabularies.byte_level().encode("the river").ids


async def test_short_prompts_do_not_wait_for_long_ones(folder: Path) -> None:
    async with running(folder, tokenizer_processes=2, tokenizer_timeout_s=300) as pool:
        [takes_long] = [process for process in processes() if process.nice() > psutil.Process().nice()]
        takes_long.suspend()
        long = [asyncio.create_task(pool.encode(text("x" * (SHORT_BYTES + 1)))) for _ in range(3)]
        for _ in range(20):
            assert list(await pool.encode(text("the river"))) == vocabularies.byte_level().encode("the river").ids
        assert not any(task.done() for task in long)
        takes_long.resume()
        assert [len(ids) for ids in await asyncio.gather(*long)] == [
            len(await pool.encode(text("x" * (SHORT_BYTES + 1))))
        ] * 3


async def test_a_process_that_is_killed_in_the_middle_loses_no_prompt(folder: Path) -> None:
    async with running(folder) as pool:
        [process] = processes()
        process.suspend()
        answers = [asyncio.create_task(pool.encode(text(f"the river {i}"))) for i in range(5)]
        await asyncio.sleep(0.1)
        process.kill()
        expected = [vocabularies.byte_level().encode(f"the river {i}").ids for i in range(5)]
        assert [list(ids) for ids in await asyncio.gather(*answers)] == expected


async def test_a_process_that_somebody_has_stopped_is_replaced(folder: Path) -> None:
    async with running(folder, tokenizer_timeout_s=0.1) as pool:
        [process] = processes()
        process.suspend()
        assert list(await pool.encode(text("the river"))) == vocabularies.byte_level().encode("the river").ids


async def test_closing_ends_a_process_whatever_it_is_at(folder: Path) -> None:
    async with running(folder, tokenizer_timeout_s=300) as pool:
        [process] = processes()
        process.suspend()
        task = asyncio.create_task(pool.encode(text("the river")))
        await asyncio.sleep(0.1)
    await asyncio.to_thread(process.wait, 30)
    task.cancel()


def test_a_process_ends_with_the_server_whatever_it_is_at(folder: Path) -> None:
    program = f"""
import asyncio, pathlib, psutil
from weir.config import ServerSettings
from weir.server.tokenizer_pool import TokenizerPool

async def main():
    pool = TokenizerPool(pathlib.Path({str(folder)!r}), ServerSettings(tokenizer_processes=1))
    pool.start()
    await pool.load()
    [process] = [c for c in psutil.Process().children() if "spawn_main" in " ".join(c.cmdline())]
    process.suspend()  # so that it cannot notice by itself
    print(process.pid, flush=True)
    await asyncio.sleep(300)

asyncio.run(main())
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        worker = psutil.Process(int(server.stdout.readline()))
        server.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 30
    while worker.is_running() and worker.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        time.sleep(0.01)


async def test_a_folder_without_a_tokenizer_says_so(tmp_path: Path) -> None:
    pool = TokenizerPool(tmp_path, ServerSettings(tokenizer_processes=1))
    pool.start()
    with pytest.raises(TokenizerError, match=r"no tokenizer\.json"):
        await pool.load()
    pool.close()


async def test_a_process_that_dies_while_it_loads_is_an_error_too(folder: Path) -> None:
    pool = TokenizerPool(folder, ServerSettings(tokenizer_processes=1))
    pool.start()
    for process in processes():
        os.kill(process.pid, signal.SIGKILL)
    with pytest.raises(TokenizerError, match="exit code -9"):
        await pool.load()
    pool.close()
