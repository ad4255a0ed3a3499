"""The vocabularies that the text tests run over."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer

from tests.unit.text.vocabularies import (
    Vocabulary,
    build_byte_level,
    build_metaspace,
    build_sentencepiece,
    byte_level,
)

DEMO_TOKENIZER = Path(__file__).parents[3] / "models/smollm2-135m-instruct/tokenizer.json"


@pytest.fixture(scope="session")
def byte_level_vocabulary() -> Vocabulary:
    return build_byte_level()


@pytest.fixture(scope="session")
def sentencepiece_vocabulary() -> Vocabulary:
    return build_sentencepiece()


@pytest.fixture(scope="session")
def metaspace_vocabulary() -> Vocabulary:
    return build_metaspace()


@pytest.fixture(
    scope="session",
    params=["byte-level", "sentencepiece", "metaspace", pytest.param("demo model", marks=pytest.mark.model)],
)
def vocabulary(request: pytest.FixtureRequest) -> Vocabulary:
    if request.param == "demo model":
        return byte_level(Tokenizer.from_file(str(DEMO_TOKENIZER)))
    name = request.param.replace("-", "_") + "_vocabulary"
    built: Vocabulary = request.getfixturevalue(name)
    return built
