"""What can be said of a request before its prompt is known is said then, and nothing else is."""

from __future__ import annotations

from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st
from weir.engine.errors import InvalidRequestError
from weir.engine.request import GenerateRequest, SamplingParams
from weir.engine.validation import RequestLimits, validate, validate_before_prompt

LIMITS = RequestLimits(
    vocab_size=10,
    max_model_len=12,
    block_size=4,
    kv_blocks=5,
    max_running=4,
    max_choices=3,
    max_logprobs=2,
    max_stop_strings=2,
    max_stop_string_chars=3,
    max_logit_bias=2,
)
NUMBERS = st.sampled_from([-3, -1, 0, 1, 2, 3, 4, 5, 11, 12, 13, 2**31 - 1])
REALS = st.sampled_from([-2.5, -1.0, 0.0, 0.5, 1.0, 2.0, 101.0, float("inf"), float("nan")])
PARAMS = st.builds(
    SamplingParams,
    max_tokens=NUMBERS,
    min_tokens=NUMBERS,
    temperature=REALS,
    top_k=NUMBERS,
    top_p=REALS,
    min_p=REALS,
    repetition_penalty=REALS,
    presence_penalty=REALS,
    frequency_penalty=REALS,
    seed=st.none() | NUMBERS,
    stop=st.lists(st.text("ab", max_size=4), max_size=3).map(tuple),
    stop_token_ids=st.lists(NUMBERS, max_size=3).map(tuple),
    logit_bias=st.lists(st.tuples(NUMBERS, REALS), max_size=3).map(tuple),
    logprobs=st.none() | NUMBERS,
    prompt_logprobs=st.none() | NUMBERS,
)
VALID = SamplingParams(max_tokens=1)


def wrong(request: GenerateRequest, before_prompt: bool = False) -> dict[str, str]:
    """Field -> description of what is wrong."""
    try:
        (validate_before_prompt if before_prompt else validate)(request, LIMITS)
    except InvalidRequestError as error:
        return {violation.field: violation.description for violation in error.violations}
    return {}


@given(params=PARAMS, n=NUMBERS, priority=NUMBERS, prompt=st.lists(st.integers(0, 9), min_size=1, max_size=12))
def test_what_is_wrong_before_the_prompt_is_wrong_with_every_prompt(
    params: SamplingParams, n: int, priority: int, prompt: list[int]
) -> None:
    before = GenerateRequest("r", (), params, n=n, priority=priority)
    with_prompt = GenerateRequest("r", tuple(prompt), params, n=n, priority=priority)
    assert wrong(before, before_prompt=True).keys() <= wrong(with_prompt).keys()


@given(params=PARAMS, n=NUMBERS, priority=NUMBERS)
def test_what_only_a_prompt_can_make_wrong_is_left_for_then(params: SamplingParams, n: int, priority: int) -> None:
    shortest = GenerateRequest("r", (1,), params, n=n, priority=priority)
    assert wrong(shortest, before_prompt=True) == wrong(shortest)


@pytest.mark.parametrize(
    ("n", "max_tokens", "field"),
    [
        (2**31 - 1, 1, "n"),
        (4, 1, "n"),
        (1, 13, "max_tokens"),
        (1, 2**31 - 1, "max_tokens"),
        # 20 slots: a shared prompt of one, and two or three times 11 that are computed.
        (3, 12, "max_tokens"),
    ],
)
def test_sizes_that_no_prompt_makes_possible(n: int, max_tokens: int, field: str) -> None:
    request = GenerateRequest("r", (), SamplingParams(max_tokens=max_tokens), n=n)
    assert list(wrong(request, before_prompt=True)) == [field]


@pytest.mark.parametrize(
    ("prompt", "description"),
    [
        ((), "is empty: at least one token is needed"),
        ((0, 9, 10, 11), "token id 10 at position 2 is not in 0..9"),
        ((-1,), "token id -1 at position 0 is not in 0..9"),
        ((1,) * 13, "has 13 tokens; the model takes 12"),
        # Too long to be looked at.
        ((-1,) * 13, "has 13 tokens; the model takes 12"),
    ],
)
def test_a_wrong_prompt_says_what_is_wrong(prompt: tuple[int, ...], description: str) -> None:
    assert wrong(GenerateRequest("r", prompt, VALID))["prompt"] == description


def test_a_list_that_is_too_long_is_not_looked_into() -> None:
    class Untouchable(tuple[object, ...]):
        __slots__ = ()

        def __iter__(self) -> None:  # type: ignore[override]
            raise AssertionError("looked into")

    params = {name: Untouchable([0] * 3) for name in ("stop", "stop_token_ids", "logit_bias")}
    request = GenerateRequest("r", (1,), SamplingParams(max_tokens=1, **params))  # type: ignore[arg-type]
    assert wrong(request).keys() == params.keys()


def test_every_parameter_is_drawn_in_these_tests() -> None:
    drawn = {"max_tokens", "min_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed"}
    drawn |= {"presence_penalty", "frequency_penalty", "stop", "stop_token_ids", "logit_bias"}
    drawn |= {"logprobs", "prompt_logprobs"}
    assert {field.name for field in fields(SamplingParams)} - drawn == {"ignore_eos", "include_stop"}
