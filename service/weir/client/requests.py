"""From keyword arguments to API messages. An absent keyword is absent on the wire too: the server's default holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

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


_REQUEST_FIELDS = ("n", "priority", "cache_salt", "model", "request_id")


def build_prompt(text: str | None, token_ids: Sequence[int] | None, messages: Sequence[Message] | None) -> pb.Prompt:
    """The prompt message. Raises ValueError unless exactly one input is given."""
    if sum(given is not None for given in (text, token_ids, messages)) != 1:
        raise ValueError("give exactly one of prompt, token_ids and messages")
    if text is not None:
        return pb.Prompt(text=text)
    if token_ids is not None:
        return pb.Prompt(token_ids=pb.TokenIds(ids=token_ids))
    turns = [pb.ChatMessage(role=turn["role"], content=turn["content"]) for turn in messages or ()]
    return pb.Prompt(chat=pb.Chat(messages=turns))


def build_generate(prompt: pb.Prompt, options: Options) -> pb.GenerateRequest:
    """The streaming request."""
    fields, params = _split(options)
    return pb.GenerateRequest(prompt=prompt, params=params, **fields)


def build_complete(prompt: pb.Prompt, options: Options) -> pb.CompleteRequest:
    """The unary request."""
    fields, params = _split(options)
    return pb.CompleteRequest(prompt=prompt, params=params, **fields)


def _split(options: Options) -> tuple[dict[str, Any], pb.SamplingParams]:
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    unknown = given.keys() - Options.__annotations__.keys()
    if unknown:
        raise TypeError(f"unknown keyword: {', '.join(sorted(unknown))}")
    if isinstance(given.get("stop"), str):
        given["stop"] = [given["stop"]]
    fields = {name: given.pop(name) for name in _REQUEST_FIELDS if name in given}
    return fields, pb.SamplingParams(**given)
