"""The padded batches of the ablation serve what transformers computes, and count what they compute."""

from __future__ import annotations

from pathlib import Path

import pytest
from weir.bench.workload import WorkItem

from benchmarks.ablation.padded import PaddedModel
from benchmarks.ablation.policies import Policy, continuous, mixed, static_with_cache, static_without_cache
from tests.unit.models.tiny import configs, make, reference_logits, save

PROMPTS = ((5, 9, 3, 7, 2, 8), (4,), (6, 1, 11, 12), (90, 91, 92), tuple(range(40, 80)))
OUTPUTS = (3, 9, 1, 5, 4)
ITEMS = tuple(WorkItem(prompt, count) for prompt, count in zip(PROMPTS, OUTPUTS, strict=True))
POLICIES = (static_without_cache, static_with_cache, continuous, mixed)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(make(configs()["smollm2"]), tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def expected() -> list[list[int]]:
    model = make(configs()["smollm2"])
    answers = []
    for prompt, count in zip(PROMPTS, OUTPUTS, strict=True):
        tokens = list(prompt)
        for _ in range(count):
            tokens.append(int(reference_logits(model, tokens)[-1].argmax()))
        answers.append(tokens[len(prompt) :])
    return answers


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_serves_the_tokens_of_the_reference(
    folder: Path, expected: list[list[int]], policy: Policy
) -> None:
    assert policy(PaddedModel(str(folder), 2, 96), ITEMS, 2).token_ids == expected


def counted(folder: Path, policy: Policy, items: tuple[WorkItem, ...]) -> tuple[int, int]:
    model = PaddedModel(str(folder), 2, 96)
    policy(model, items, 2)
    return model.computed_tokens, model.padding_tokens


TWO = (WorkItem((5, 9, 3, 7), 3), WorkItem((4, 2), 1))
THREE = (*TWO, WorkItem((8, 8, 8), 2))


def test_a_static_batch_without_cache_computes_every_sequence_again(folder: Path) -> None:
    # Steps of 2 rows x 4, 5 and 6 tokens. Real: 4 + 2 in the first, then 5 and 6 of the first request alone.
    assert counted(folder, static_without_cache, TWO) == (2 * (4 + 5 + 6), 2 * (4 + 5 + 6) - (4 + 2 + 5 + 6))


def test_a_static_batch_with_cache_carries_an_ended_row_along(folder: Path) -> None:
    # One step of 2 x 4, two of 2 x 1; the second row is padding in both.
    assert counted(folder, static_with_cache, TWO) == (8 + 2 + 2, 2 + 1 + 1)


def test_a_row_is_refilled_when_its_request_has_ended(folder: Path) -> None:
    # 2 x 4 for two prompts, and the second ends; 2 x 1, half padding; the third prompt alone, 1 x 3; 2 x 1 ends both.
    assert counted(folder, continuous, THREE) == (8 + 2 + 3 + 2, 2 + 1 + 0 + 0)


def test_a_decode_beside_a_chunk_is_padded_to_its_width(folder: Path) -> None:
    # 2 x 4 for two prompts, and the second ends; 2 x 3, the third prompt beside one decode; 2 x 1 ends both.
    assert counted(folder, mixed, THREE) == (8 + 6 + 2, 2 + 2 + 0)
