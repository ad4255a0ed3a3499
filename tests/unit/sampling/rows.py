"""Small factories, and a sampler in plain Python that reads like the definition: what every test compares with."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from weir.engine.request import SamplingParams
from weir.engine.sampler import Sampler, SampleRow
from weir.engine.sampling_state import SamplingState


def params(**changes: object) -> SamplingParams:
    return SamplingParams(**({"max_tokens": 100, "seed": 0} | changes))  # type: ignore[arg-type]


def state(
    vocab_size: int,
    prompt: Sequence[int] = (),
    output: Sequence[int] = (),
    eos: Sequence[int] = (),
    choice: int = 0,
    **changes: object,
) -> SamplingState:
    made = SamplingState(params(**changes), prompt, eos, vocab_size, choice)
    for token_id in output:
        made.append(token_id)
    return made


def sample(
    logits: torch.Tensor, states: Sequence[SamplingState], position: int = 0, candidates: int = 128
) -> list[int]:
    """Sample row r with states[r]; the logits stay as they are."""
    sampler = Sampler(logits.shape[1], candidates=candidates)
    return sampler(logits.clone(), [SampleRow(row_state, position) for row_state in states]).token_ids


def probabilities(logits: Sequence[float], spec: SamplingParams) -> list[float]:
    """Exact probabilities after temperature, top_k, top_p and min_p, in float64 and one token at a time."""
    largest = max(logits)
    weights = [math.exp((logit - largest) / spec.temperature) for logit in logits]
    order = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    if spec.top_k > 0:
        order = order[: spec.top_k]
    total, before = sum(weights[token] for token in order), 0.0
    kept: list[int] = []
    for token in order:
        if not kept or ((spec.top_p == 1.0 or before < spec.top_p * total) and weights[token] >= spec.min_p):
            kept.append(token)
        before += weights[token]
    total = sum(weights[token] for token in kept)
    return [weights[token] / total if token in kept else 0.0 for token in range(len(logits))]


def expected_token(logits: Sequence[float], spec: SamplingParams, u: float) -> int:
    """The first id whose cumulative probability exceeds u."""
    cumulative = 0.0
    for token, probability in enumerate(probabilities(logits, spec)):
        cumulative += probability
        if probability and cumulative > u:
            return token
    raise AssertionError("cumulative probabilities end below u")
