"""Rotary tables against transformers' own."""

from __future__ import annotations

import pytest
import torch
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from weir.models.rope import RopeSpec
from weir.models.rope_table import rope_table
from weir.models.spec import ModelSpec

from tests.unit.models import tiny

CPU = torch.device("cpu")


@pytest.mark.parametrize("name", [name for name in tiny.configs() if name.startswith("llama")])
def test_tables_equal_those_of_transformers(name: str) -> None:
    config = tiny.configs()[name]
    spec = ModelSpec.from_config(config.to_dict())
    expected_cos, expected_sin = LlamaRotaryEmbedding(config)(torch.zeros(1), torch.arange(200).unsqueeze(0))
    cos, sin = rope_table(spec.rope, spec.head_dim, 200, CPU)
    # transformers repeats the half table for both halves of a head.
    torch.testing.assert_close(cos, expected_cos[0, :, : spec.head_dim // 2], rtol=0, atol=2e-5)
    torch.testing.assert_close(sin, expected_sin[0, :, : spec.head_dim // 2], rtol=0, atol=2e-5)


def test_plain_tables_by_hand() -> None:
    cos, sin = rope_table(RopeSpec(100.0), head_dim=4, max_positions=3, device=CPU)
    # Frequencies 100^0 = 1 and 100^(-2/4) = 0.1.
    angles = torch.tensor([[0.0, 0.0], [1.0, 0.1], [2.0, 0.2]])
    torch.testing.assert_close(cos, angles.cos())
    torch.testing.assert_close(sin, angles.sin())
