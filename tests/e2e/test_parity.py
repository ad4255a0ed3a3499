"""Greedy output equals Hugging Face's, token for token in float32, however work is cut and whoever shares the step."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from weir.config import EngineSettings, ModelSettings, Settings
from weir.engine.core import EngineCore
from weir.engine.load import load_engine
from weir.engine.request import Delta, Done, GenerateRequest, SamplingParams

from .conftest import MAX_TOKENS, Reference
from .prompts import PROMPTS

pytestmark = pytest.mark.model


def make_engine(model_dir: Path, *, max_running: int, max_batch_tokens: int, prefix_cache: bool) -> EngineCore:
    return load_engine(
        Settings(
            model=ModelSettings(model=str(model_dir), dtype="float32", max_model_len=2048),
            engine=EngineSettings(
                kv_memory_bytes=2**30,
                max_running=max_running,
                max_batch_tokens=max_batch_tokens,
                prefix_cache=prefix_cache,
            ),
        )
    )


def generate(core: EngineCore, prompts: dict[str, tuple[int, ...]]) -> dict[str, tuple[tuple[int, ...], str]]:
    """Submit all at once, step to the end, and check that no step computed a token twice or in vain."""
    for name, prompt in prompts.items():
        core.submit(
            GenerateRequest(name, prompt, SamplingParams(MAX_TOKENS, temperature=0.0), arrival=time.monotonic())
        )
    tokens: dict[str, list[int]] = {name: [] for name in prompts}
    texts = dict.fromkeys(prompts, "")
    computed, cached = 0, 0
    done = set()
    while core.has_work:
        output = core.step()
        if output.record is not None:
            computed += output.record.decode_tokens + output.record.prefill_tokens
            cached += output.record.prefix_hit_tokens
        for event in output.events:
            if isinstance(event, Delta):
                tokens[event.request_id] += event.token_ids
                texts[event.request_id] += event.text
            elif isinstance(event, Done):
                done.add(event.request_id)
    assert done == prompts.keys()
    needed = sum(len(prompt) + len(tokens[name]) - 1 for name, prompt in prompts.items())
    assert computed == needed - cached, "padding or recomputation"
    return {name: (tuple(tokens[name]), texts[name]) for name in prompts}


def expect(references: dict[str, Reference], got: dict[str, tuple[tuple[int, ...], str]]) -> None:
    for name, (tokens, text) in got.items():
        reference = references[name.split("/")[0]]
        assert tokens == reference.output, name
        assert text == reference.text, name


@pytest.fixture(scope="module")
def alone(model_dir: Path) -> EngineCore:
    return make_engine(model_dir, max_running=4, max_batch_tokens=512, prefix_cache=True)


@pytest.mark.parametrize("name", PROMPTS)
def test_each_prompt_alone(alone: EngineCore, references: dict[str, Reference], name: str) -> None:
    alone.flush_prefix_cache()
    expect(references, generate(alone, {name: references[name].prompt}))


def test_each_prompt_again_from_a_hot_prefix_cache(alone: EngineCore, references: dict[str, Reference]) -> None:
    prompts = {name: r.prompt for name, r in references.items()}
    expect(references, generate(alone, prompts))
    expect(references, generate(alone, prompts))


def test_a_batch_of_32_of_mixed_lengths(model_dir: Path, references: dict[str, Reference]) -> None:
    core = make_engine(model_dir, max_running=32, max_batch_tokens=64, prefix_cache=False)
    names = list(references)
    prompts = {f"{name}/{i}": references[name].prompt for i in range(3) for name in names}
    expect(references, generate(core, dict(list(prompts.items())[:32])))


@pytest.mark.parametrize("max_batch_tokens", [16, 64, 512])
@pytest.mark.parametrize("prefix_cache", [False, True])
def test_chunk_budgets(
    model_dir: Path, references: dict[str, Reference], max_batch_tokens: int, prefix_cache: bool
) -> None:
    core = make_engine(model_dir, max_running=8, max_batch_tokens=max_batch_tokens, prefix_cache=prefix_cache)
    prompts = {name: r.prompt for name, r in references.items()}
    expect(references, generate(core, prompts))
