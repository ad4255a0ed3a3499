"""The whole stack gives what the reference gives: streamed and unary, as text and as token ids, all at once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from weir.client import AsyncClient

from tests.contract.server_process import ServerProcess

from .conftest import MAX_TOKENS, Reference
from .prompts import PROMPTS

pytestmark = [pytest.mark.model, pytest.mark.slow]


async def _streamed(client: AsyncClient, reference: Reference) -> tuple[tuple[int, ...], str]:
    tokens: list[int] = []
    text = ""
    stream = client.generate(token_ids=reference.prompt, max_tokens=MAX_TOKENS, temperature=0.0)
    async with stream:
        async for delta in stream:
            tokens += delta.token_ids
            text += delta.text
    return tuple(tokens), text


async def _unary(client: AsyncClient, name: str, reference: Reference) -> tuple[tuple[int, ...], str]:
    # The longest prompts were cut to a number of tokens, so only their ids are the same.
    given = {"token_ids": reference.prompt} if len(reference.prompt) == 1500 else {"prompt": PROMPTS[name]}
    answer = await client.complete(**given, max_tokens=MAX_TOKENS, temperature=0.0)  # type: ignore[arg-type]
    return answer.token_ids, answer.text


async def _everything(target: str, references: dict[str, Reference]) -> None:
    async with AsyncClient(target) as client:
        names = list(references)
        streamed = asyncio.gather(*(_streamed(client, references[name]) for name in names))
        unary = asyncio.gather(*(_unary(client, name, references[name]) for name in names))
        for kind, answers in (("streamed", await streamed), ("unary", await unary)):
            for name, (tokens, text) in zip(names, answers, strict=True):
                assert tokens == references[name].output, (kind, name)
                assert text == references[name].text, (kind, name)
        budget = await client.budget()
        assert (budget.kv_used_tokens, budget.running_requests, budget.queued_requests) == (0, 0, 0)


def test_streamed_and_unary_answers_equal_the_reference(
    tmp_path: Path, model_dir: Path, references: dict[str, Reference]
) -> None:
    flags = (
        *("--model", str(model_dir), "--load-format", "auto", "--dtype", "float32", "--kernels", "auto"),
        *("--kv-memory", "1GiB", "--max-batch-tokens", "128", "--max-model-len", "2048"),
    )
    with ServerProcess(tmp_path, *flags) as server:
        server.ready().close()
        asyncio.run(_everything(server.target, references))
        assert server.terminate() == 0
