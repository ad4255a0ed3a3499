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

# A program, as all templates are: what the first turn says decides what it does. (Jinja computes constants when it
# compiles; a length is none.)
TEMPLATE = (
    "{% if messages[0].content.startswith('spin') %}"
    "{% for a in range(90000) %}{% for b in range(90000) %}{% for c in range(90000) %}{% endfor %}{% endfor %}"
    "{% endfor %}"
    "{% elif messages[0].content == 'fill' %}{{ 'x' * (messages | length * 100000000000) }}"
    "{% elif messages[0].content == 'grow' %}{{ 'spread ' * (messages | length * 30000000) }}"
    "{% elif messages[0].content == 'raise' %}{{ raise_exception('no such turn') }}"
    "{% else %}{% for m in messages %}<|user|>{{ m.role }}: {{ m.content }}</s>{% endfor %}{% endif %}"
)
LONG = "spin" + "x" * SHORT_BYTES


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


def text(value: str) -> pb.Prompt:
    return pb.Prompt(text=value)


def chat(content: str, role: str = "user") -> pb.Prompt:
    return pb.Prompt(chat=pb.Chat(messages=[pb.ChatMessage(role=role, content=content)]))


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


async def test_a_template_without_end_is_ended_and_the_next_prompt_is_served(folder: Path) -> None:
    async with running(folder, tokenizer_timeout_s=0.5) as pool:
        [before] = processes()
        with pytest.raises(PromptError, match=r"takes more than 0\.5 s to tokenise"):
            await pool.encode(chat("spin"))
        assert list(await pool.encode(text("the river"))) == vocabularies.byte_level().encode("the river").ids
        assert before not in processes()


async def test_a_template_that_wants_a_hundred_gigabytes_is_refused(folder: Path) -> None:
    async with running(folder) as pool:
        with pytest.raises(PromptError, match="memory"):
            await pool.encode(chat("fill"))
        assert list(await pool.encode(text("the river"))) == vocabularies.byte_level().encode("the river").ids


async def test_a_tokenizer_that_wants_more_memory_than_it_may_is_refused(folder: Path) -> None:
    # The template's 210 MB of text fit into the limit; the tokens do not, and the library does not survive that.
    async with running(folder, tokenizer_memory_bytes=700 * 2**20, tokenizer_timeout_s=300) as pool:
        with pytest.raises(PromptError, match="its process ended"):
            await pool.encode(chat("grow"))
        assert list(await pool.encode(text("the river"))) == vocabularies.byte_level().encode("the river").ids


async def test_short_prompts_do_not_wait_for_long_ones(folder: Path) -> None:
    async with running(folder, tokenizer_processes=2, tokenizer_timeout_s=300) as pool:
        long = [asyncio.create_task(pool.encode(chat(LONG))) for _ in range(3)]
        for _ in range(20):
            assert list(await pool.encode(text("the river"))) == vocabularies.byte_level().encode("the river").ids
        assert not any(task.done() for task in long)
        for task in long:
            task.cancel()


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


async def test_closing_ends_a_process_in_the_middle_of_a_prompt(folder: Path) -> None:
    async with running(folder, tokenizer_timeout_s=300) as pool:
        [process] = processes()
        task = asyncio.create_task(pool.encode(chat("spin")))
        await asyncio.sleep(0.1)
    await asyncio.to_thread(process.wait, 30)
    task.cancel()


def test_a_process_in_the_middle_of_a_prompt_ends_with_the_server(folder: Path) -> None:
    program = f"""
import asyncio, os, pathlib, psutil
from weir.config import ServerSettings
from weir.server.tokenizer_pool import TokenizerPool
from weir.v1 import inference_pb2 as pb

async def main():
    pool = TokenizerPool(pathlib.Path({str(folder)!r}), ServerSettings(tokenizer_processes=1, tokenizer_timeout_s=300))
    pool.start()
    await pool.load()
    turn = pb.ChatMessage(role="user", content="spin")
    task = asyncio.create_task(pool.encode(pb.Prompt(chat=pb.Chat(messages=[turn]))))
    await asyncio.sleep(0.2)
    print([c.pid for c in psutil.Process().children() if "spawn_main" in " ".join(c.cmdline())][0], flush=True)
    await task

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
