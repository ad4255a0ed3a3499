"""From keyword arguments to API messages. An absent keyword is absent on the wire too: the server's default holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict

from weir.client import checks
from weir.client.errors import InvalidRequestError, Violation, WrongTypeError
from weir.v1 import inference_pb2 as pb

Message = Mapping[str, str]


class Options(TypedDict, total=False):
    """Every keyword that `complete` and `generate` take besides the prompt; docs/api.md explains each."""

    max_tokens: int
    min_tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float]
    seed: int
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    include_stop: bool
    n: int
    logprobs: int
    prompt_logprobs: int
    priority: int
    cache_salt: str
    model: str
    request_id: str


_TURN_FIELDS = ("role", "content")
_REQUEST_FIELDS = ("n", "priority", "cache_salt", "model", "request_id")


def build_prompt(text: str | None, token_ids: Sequence[int] | None, messages: Sequence[Message] | None) -> pb.Prompt:
    """The prompt message. Raises InvalidRequestError unless exactly one input is given, and is one."""
    if sum(given is not None for given in (text, token_ids, messages)) != 1:
        raise InvalidRequestError.of([Violation("prompt", "give exactly one of prompt, token_ids and messages")])
    if text is not None:
        return checks.build(pb.Prompt, "prompt.", {"text": text})
    if token_ids is not None:
        return pb.Prompt(token_ids=checks.build(pb.TokenIds, "prompt.token_ids.", {"ids": token_ids}))
    return pb.Prompt(chat=pb.Chat(messages=_turns(messages)))


def build_generate(prompt: pb.Prompt, options: Options) -> pb.GenerateRequest:
    """The streaming request. Raises InvalidRequestError."""
    fields, params = _split(options)
    return checks.build(pb.GenerateRequest, "", {"prompt": prompt, "params": params, **fields})


def build_complete(prompt: pb.Prompt, options: Options) -> pb.CompleteRequest:
    """The unary request. Raises InvalidRequestError."""
    fields, params = _split(options)
    return checks.build(pb.CompleteRequest, "", {"prompt": prompt, "params": params, **fields})


def _split(options: Options) -> tuple[dict[str, Any], pb.SamplingParams]:
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    unknown = sorted(given.keys() - Options.__annotations__.keys())
    if unknown:
        raise WrongTypeError.of([Violation(name, "there is no such keyword") for name in unknown])
    if isinstance(given.get("stop"), str):
        given["stop"] = [given["stop"]]
    fields = {name: given.pop(name) for name in _REQUEST_FIELDS if name in given}
    return fields, checks.build(pb.SamplingParams, "params.", given)


def _turns(messages: Any) -> list[pb.ChatMessage]:
    path = "prompt.chat.messages"
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Iterable):
        raise WrongTypeError.of([Violation(path, f"must be a list of messages, got {checks.shown(messages)}")])
    return [_turn(f"{path}[{place}]", message) for place, message in enumerate(messages)]


def _turn(path: str, message: Any) -> pb.ChatMessage:
    """One message. What it has besides role and content would be lost in silence, so it is refused."""
    if not isinstance(message, Mapping):
        raise WrongTypeError.of([Violation(path, f"must have role and content, got {checks.shown(message)}")])
    violations = [Violation(f"{path}.{name}", "is missing") for name in _TURN_FIELDS if message.get(name) is None]
    violations += [
        Violation(f"{path}.{name}", "is unknown: a message has role and content")
        for name, value in message.items()
        if name not in _TURN_FIELDS and value is not None
    ]
    if violations:
        raise InvalidRequestError.of(violations)
    return checks.build(pb.ChatMessage, f"{path}.", {name: message[name] for name in _TURN_FIELDS})
