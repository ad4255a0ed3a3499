"""What cannot be sent is refused by name before it is sent, as a WeirError and as the builtin it also is."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from weir.client import DeadlineError, InvalidRequestError, WeirError, WrongTypeError
from weir.client.calls import Caller
from weir.client.channel import channel_options, checked_credentials
from weir.client.errors import Failure
from weir.client.requests import build_complete, build_prompt

SURROGATE = "\udcff"


@pytest.mark.parametrize(
    ("options", "field", "said"),
    [
        ({"seed": -1}, "params.seed", "from 0 to 18446744073709551615, got -1"),
        ({"seed": 2**64}, "params.seed", "got 18446744073709551616"),
        ({"top_k": 2**40}, "params.top_k", "32-bit integer, got 1099511627776"),
        ({"max_tokens": 10**5000}, "params.max_tokens", "got a int too large to show"),
        ({"temperature": 10**400}, "params.temperature", "a number"),
        ({"stop": [b"\xff"]}, "params.stop[0]", "text of valid Unicode"),
        ({"stop": SURROGATE}, "params.stop[0]", "text of valid Unicode"),
        ({"stop_token_ids": [1, 2**40]}, "params.stop_token_ids[1]", "got 1099511627776"),
        ({"logit_bias": {2**40: 1.0}}, "params.logit_bias", "must map a 32-bit integer to a number"),
        ({"n": 2**31}, "n", "got 2147483648"),
        ({"request_id": SURROGATE}, "request_id", "text of valid Unicode"),
    ],
)
def test_a_value_that_its_field_cannot_hold_is_named(options: dict[str, Any], field: str, said: str) -> None:
    with pytest.raises(InvalidRequestError, match=said) as caught:
        build_complete(build_prompt("x", None, None), options)  # type: ignore[arg-type]
    assert [violation.field for violation in caught.value.violations] == [field]
    assert isinstance(caught.value, ValueError)
    assert caught.value.code == "INVALID_ARGUMENT"


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"top_k": 1.5}, "params.top_k"),
        ({"temperature": "hot"}, "params.temperature"),
        ({"stop": 5}, "params.stop"),
        ({"stop": ["a", 5]}, "params.stop[1]"),
        ({"logit_bias": {"a": 1}}, "params.logit_bias"),
        ({"ignore_eos": "yes"}, "params.ignore_eos"),
        ({"model": 5}, "model"),
        ({"temprature": 1.0}, "temprature"),
    ],
)
def test_a_wrong_type_is_a_type_error_too(options: dict[str, Any], field: str) -> None:
    with pytest.raises(WrongTypeError) as caught:
        build_complete(build_prompt("x", None, None), options)  # type: ignore[arg-type]
    assert [violation.field for violation in caught.value.violations] == [field]
    assert isinstance(caught.value, TypeError)


def test_every_wrong_field_is_named_at_once() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        build_complete(build_prompt("x", None, None), {"seed": -1, "max_tokens": 4, "top_k": 2**40})
    assert [violation.field for violation in caught.value.violations] == ["params.seed", "params.top_k"]


def test_an_iterator_that_goes_wrong_is_refused_though_it_cannot_be_read_again() -> None:
    with pytest.raises(InvalidRequestError):
        build_prompt(None, iter([1, 2**40]), None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("messages", "fields"),
    [
        ([{"role": "user"}], ["prompt.chat.messages[0].content"]),
        ([{"role": "user", "content": None}], ["prompt.chat.messages[0].content"]),
        ([{}], ["prompt.chat.messages[0].role", "prompt.chat.messages[0].content"]),
        ([{"role": "user", "content": "a"}, {"role": "user", "content": []}], ["prompt.chat.messages[1].content"]),
        ([{"role": "user", "content": SURROGATE}], ["prompt.chat.messages[0].content"]),
        ([{"role": "user", "content": "a", "name": "bob"}], ["prompt.chat.messages[0].name"]),
        (["hello"], ["prompt.chat.messages[0]"]),
        ("hello", ["prompt.chat.messages"]),
        ({"role": "user", "content": "a"}, ["prompt.chat.messages"]),
        (5, ["prompt.chat.messages"]),
    ],
)
def test_a_message_is_exactly_a_role_and_a_content(messages: Any, fields: list[str]) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        build_prompt(None, None, messages)
    assert [violation.field for violation in caught.value.violations] == fields


def test_keys_of_a_message_that_hold_nothing_lose_nothing() -> None:
    prompt = build_prompt(None, None, [{"role": "user", "content": "hi", "name": None}])  # type: ignore[dict-item]
    [turn] = prompt.chat.messages
    assert (turn.role, turn.content) == ("user", "hi")


@pytest.mark.parametrize("inputs", [(None, None, None), ("x", [1], None), (None, [1], [])])
def test_exactly_one_prompt_is_given(inputs: tuple[Any, Any, Any]) -> None:
    with pytest.raises(ValueError, match="exactly one of prompt, token_ids and messages"):
        build_prompt(*inputs)


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"timeout_s": -1}, "timeout_s"),
        ({"timeout_s": float("nan")}, "timeout_s"),
        ({"timeout_s": "1"}, "timeout_s"),
        ({"timeout_s": True}, "timeout_s"),
        ({"metadata": {"a": "b"}}, "metadata"),
        ({"metadata": 5}, "metadata"),
        ({"metadata": [("X-Upper", "a")]}, "metadata"),
        ({"metadata": [("x-a", "line\nbreak")]}, "metadata x-a"),
        ({"metadata": [("x-a", "é")]}, "metadata x-a"),
        ({"metadata": [("x-a", 5)]}, "metadata x-a"),
    ],
)
def test_timeouts_and_metadata_that_grpc_could_not_send_are_named(arguments: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        Caller("", "", 1).call(**arguments)
    assert [violation.field for violation in caught.value.violations] == [field]


@pytest.mark.parametrize("timeout_s", [None, float("inf")])
def test_an_endless_timeout_is_none(timeout_s: float | None) -> None:
    assert Caller("", "", 1).call(timeout_s).timeout_s() is None


def test_a_timeout_beyond_what_grpc_can_count_is_still_a_long_one() -> None:
    # Seconds since 1970 in 63 bits would wrap: a deadline in the past.
    assert Caller("", "", 1).call(1e300).timeout_s() == pytest.approx(1e8)
    assert Caller("", "", 1).call(10**400).timeout_s() is None


@pytest.mark.parametrize(
    ("arguments", "field"),
    [(("é", "", 1), "tenant"), (("", "a\nb", 1), "token"), ((5, "", 1), "tenant"), (("", "", 0), "max_attempts")],
)
def test_what_a_client_is_made_of_is_checked(arguments: tuple[Any, Any, Any], field: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        Caller(*arguments)
    assert [violation.field for violation in caught.value.violations] == [field]


def test_a_secret_is_not_in_the_error_about_it() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        Caller("", "s3cret\n", 1)
    assert "s3cret" not in str(caught.value)
    assert "U+000A" in str(caught.value)


@pytest.mark.parametrize("arguments", [(0,), (2**31,), ("4MiB",), (1, 0), (1, "5"), (1, float("nan"))])
def test_the_numbers_of_a_channel_are_checked(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(InvalidRequestError):
        channel_options(*arguments)


def test_credentials_are_grpcs() -> None:
    with pytest.raises(WrongTypeError, match="ssl_channel_credentials"):
        checked_credentials("ca.pem")


def test_every_call_is_named_even_when_nobody_names_it() -> None:
    caller = Caller("", "", 1)
    named = caller.call(metadata=(("x-request-id", "mine"),))
    assert named.request_id == "mine"
    assert named.metadata == (("x-request-id", "mine"),)
    # The field of the request names it; a header besides could only say something else.
    by_field = caller.call(request_id="mine")
    assert (by_field.request_id, by_field.metadata) == ("mine", ())
    first, second = caller.call(), caller.call()
    assert first.metadata == (("x-request-id", first.request_id),)
    assert first.request_id != second.request_id


def test_errors_cross_process_boundaries_whole() -> None:
    for kind in (WeirError, InvalidRequestError, DeadlineError):
        copy = pickle.loads(pickle.dumps(kind(Failure("UNKNOWN", "why", "id", pushback_s=1.5))))
        assert type(copy) is kind
        assert copy.failure == Failure("UNKNOWN", "why", "id", pushback_s=1.5)
        assert str(copy) == "UNKNOWN: why"
