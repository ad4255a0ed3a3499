"""The scripted server of the contract tests, and a tiny model of random weights with its reference."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from weir.config import EngineSettings, ModelSettings, Settings
from weir.engine.load import load_engine

from tests.cases.engines import Engine
from tests.contract.conftest import app, channel, client, engine, loading, tokenizer
from tests.e2e.tiny_server import CONFIG

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["app", "channel", "client", "engine", "loading", "tokenizer"]


@dataclass(frozen=True)
class TinyModel:
    """A folder, and the same model in transformers."""

    folder: Path
    reference: PreTrainedModel

    def engine(self, **settings: object) -> Engine:
        """An engine over it, on the reference kernels: a block has 4 tokens and a step 32 unless said otherwise.

        Blocks of 4 are none that a server may have, but more of them cross and fill in a short test.
        """
        chosen = {"kv_memory_bytes": 2**20, "max_running": 8, "max_batch_tokens": 32, "threads": 1}
        block_size = settings.pop("block_size", 4)
        return Engine(
            load_engine(
                Settings(
                    model=ModelSettings(model=str(self.folder), dtype="float32", device="cpu", kernels="reference"),
                    engine=EngineSettings.model_validate(chosen | settings).model_copy(
                        update={"block_size": block_size}
                    ),
                )
            )
        )


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    """Three layers of random float32 weights, a byte-level tokenizer, and two end-of-sequence ids: 2 and 410."""
    from tests.unit.models import tiny, vocabularies  # late: importing transformers takes seconds

    folder = tmp_path_factory.mktemp("tiny")
    config = tiny.configs()["llama2"]
    config.vocab_size = 420
    config.eos_token_id = [2, 410]
    reference = tiny.make(config)
    tiny.save(reference, folder)
    vocabularies.save(vocabularies.byte_level(), folder)
    return TinyModel(folder, reference)


@pytest.fixture
def dummy_settings(tmp_path: Path) -> Callable[..., Settings]:
    """Settings for random weights of a bare config, in blocks of 16 tokens; keywords are engine settings."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"max_position_embeddings": 4096}))

    def settings(max_model_len: int = 64, **chosen: object) -> Settings:
        model = ModelSettings(
            model=str(tmp_path), load_format="dummy", device="cpu", kernels="reference", max_model_len=max_model_len
        )
        shape = {"block_size": 16, "max_running": 8, "max_batch_tokens": 32, "threads": 1}
        return Settings(model=model, engine=EngineSettings.model_validate(shape | chosen))

    return settings
