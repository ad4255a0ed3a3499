"""From the API's fields to the engine's: what absence means, and what is reserved."""

from __future__ import annotations

import dataclasses

import pytest
from weir.client.requests import Options, build_complete, build_generate, build_prompt
from weir.engine.request import GenerateRequest, SamplingParams
from weir.server.translate import engine_request, reservation_tokens, with_prompt
from weir.v1 import inference_pb2 as pb

from tests.contract.fake_engine import INFO


def translated(request: pb.GenerateRequest | pb.CompleteRequest, prompt_tokens: int = 4) -> GenerateRequest:
    return with_prompt(draft(request), request, tuple(range(prompt_tokens)), INFO)


def draft(request: pb.GenerateRequest | pb.CompleteRequest) -> GenerateRequest:
    return engine_request(request, INFO, request_id="r", arrival=1.0, deadline=None, tenant="t")


def test_absent_fields_have_the_engines_defaults() -> None:
    request = translated(pb.GenerateRequest())
    assert request.params == SamplingParams(max_tokens=INFO.default_max_tokens)
    assert (request.n, request.priority, request.tenant, request.cache_salt) == (1, 5, "t", "")


def test_zero_is_not_absent() -> None:
    params = pb.SamplingParams(
        max_tokens=0, temperature=0, top_p=0, repetition_penalty=0, seed=0, logprobs=0, prompt_logprobs=0
    )
    request = translated(pb.GenerateRequest(params=params, n=0, priority=0))
    given = request.params
    assert (given.max_tokens, given.temperature, given.top_p, given.repetition_penalty) == (0, 0.0, 0.0, 0.0)
    assert (given.seed, given.logprobs, given.prompt_logprobs) == (0, 0, 0)
    assert (request.n, request.priority) == (0, 0)


def test_every_option_of_the_client_arrives_in_the_engine() -> None:
    options = Options(
        max_tokens=7,
        min_tokens=2,
        temperature=0.7,
        top_k=40,
        top_p=0.9,
        min_p=0.05,
        repetition_penalty=1.1,
        presence_penalty=0.5,
        frequency_penalty=-0.25,
        logit_bias={5: 1.5, 3: -2.0},
        seed=2**64 - 1,
        stop=["END", "\n\n"],
        stop_token_ids=[11, 12],
        ignore_eos=True,
        include_stop=True,
        n=2,
        logprobs=3,
        prompt_logprobs=1,
        priority=9,
        cache_salt="tenant-a",
        model="echo",
        request_id="mine",
    )
    prompt = build_prompt("x", None, None)
    expected = SamplingParams(
        max_tokens=7,
        temperature=0.7,
        top_k=40,
        top_p=0.9,
        min_p=0.05,
        repetition_penalty=1.1,
        presence_penalty=0.5,
        frequency_penalty=-0.25,
        logit_bias=((3, -2.0), (5, 1.5)),
        seed=2**64 - 1,
        min_tokens=2,
        stop=("END", "\n\n"),
        stop_token_ids=(11, 12),
        ignore_eos=True,
        include_stop=True,
        logprobs=3,
        prompt_logprobs=1,
    )
    # No field may be left at its default, or this test would miss its loss.
    defaults = SamplingParams(max_tokens=0)
    assert all(getattr(expected, f.name) != getattr(defaults, f.name) for f in dataclasses.fields(SamplingParams))
    for message in (build_generate(prompt, options), build_complete(prompt, options)):
        request = translated(message)
        assert request.params == expected
        assert (request.n, request.priority, request.cache_salt) == (2, 9, "tenant-a")
        assert (message.model, message.request_id) == ("echo", "mine")


@pytest.mark.parametrize(
    ("prompt_tokens", "max_tokens"),
    [
        (4, 16),  # the default
        (50, 15),  # 64 - 50, and one more, because the last token is never computed
        (63, 2),
        (64, 1),  # a prompt of the whole length may still produce one token
        (65, 1),  # and a longer one is left to validation
    ],
)
def test_an_absent_max_tokens_is_never_more_than_the_model_length_leaves(prompt_tokens: int, max_tokens: int) -> None:
    assert translated(pb.GenerateRequest(), prompt_tokens).params.max_tokens == max_tokens


@pytest.mark.parametrize(("min_tokens", "least"), [(0, 1), (9, 9), (17, 16)])
def test_before_its_prompt_is_known_an_absent_max_tokens_is_the_least_it_can_become(
    min_tokens: int, least: int
) -> None:
    request = pb.GenerateRequest(params=pb.SamplingParams(min_tokens=min_tokens))
    assert draft(request).params.max_tokens == least
    assert draft(request).prompt_token_ids == ()


def test_a_given_max_tokens_is_the_same_before_and_with_the_prompt() -> None:
    request = pb.GenerateRequest(params=pb.SamplingParams(max_tokens=60))
    assert draft(request).params.max_tokens == translated(request, prompt_tokens=50).params.max_tokens == 60


def test_what_is_reserved_never_exceeds_what_the_model_length_allows() -> None:
    huge = pb.GenerateRequest(
        prompt=pb.Prompt(text="x" * 1_000_000), params=pb.SamplingParams(max_tokens=2_000_000_000), n=3
    )
    assert reservation_tokens(huge, INFO) == 64 + 3 * 64


def test_what_is_reserved_bounds_every_kind_of_prompt() -> None:
    tokens = pb.GenerateRequest(prompt=pb.Prompt(token_ids=pb.TokenIds(ids=[1, 2, 3])))
    assert reservation_tokens(tokens, INFO) == 3 + 16
    chat = pb.Chat(messages=[pb.ChatMessage(role="user", content="hi")])
    # 4 + 2 bytes, 16 around a turn, 64 around the conversation: more than the model length, which is the bound then.
    assert reservation_tokens(pb.GenerateRequest(prompt=pb.Prompt(chat=chat)), INFO) == 64 + 16


def test_the_client_refuses_keywords_that_do_not_exist() -> None:
    with pytest.raises(TypeError, match="temprature: there is no such keyword"):
        build_generate(build_prompt("x", None, None), {"temprature": 1.0})  # type: ignore[typeddict-unknown-key]


def test_the_client_refuses_two_inputs_and_none() -> None:
    for inputs in ((None, None, None), ("x", [1], None)):
        with pytest.raises(ValueError, match="exactly one"):
            build_prompt(*inputs)


def test_one_stop_string_need_not_be_a_list() -> None:
    assert list(build_generate(build_prompt("x", None, None), {"stop": "END"}).params.stop) == ["END"]
