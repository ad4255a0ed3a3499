"""From an API message to the engine's request. What the values may be is the engine's to validate."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any

from weir.engine.errors import InvalidRequestError, Violation
from weir.engine.records import EngineInfo
from weir.engine.request import GenerateRequest, SamplingParams
from weir.server.prompts import tokens_upper_bound
from weir.v1 import inference_pb2 as pb

DEFAULT_PRIORITY = 5
MAX_TENANT_CHARS = 128
MAX_SALT_CHARS = 1024
_SHOWN_CHARS = 100
# Fields whose absence the API tells from their zero; the others are passed on as they are.
_PRESENCE = ("temperature", "top_p", "repetition_penalty", "seed", "logprobs", "prompt_logprobs")
_PLAIN = ("min_tokens", "top_k", "min_p", "presence_penalty", "frequency_penalty", "ignore_eos", "include_stop")

_PARAMS = frozenset(field.name for field in fields(SamplingParams))

AnyRequest = pb.GenerateRequest | pb.CompleteRequest


def check_model(name: str, info: EngineInfo) -> None:
    """Raise InvalidRequestError unless `name` is empty or the served model's."""
    if name and name != info.model_name:
        shown = name if len(name) <= _SHOWN_CHARS else name[:_SHOWN_CHARS] + "…"
        raise InvalidRequestError((Violation("model", f"{shown!r} is not served here; {info.model_name!r} is"),))


def check_tenant(tenant: str) -> None:
    """Raise InvalidRequestError for a tenant id that is too long to keep."""
    if len(tenant) > MAX_TENANT_CHARS:
        raise InvalidRequestError((Violation("x-tenant-id", f"longer than {MAX_TENANT_CHARS} characters"),))


def check_salt(salt: str) -> None:
    """Raise InvalidRequestError for a cache salt that is too long to hash with every block."""
    if len(salt) > MAX_SALT_CHARS:
        raise InvalidRequestError((Violation("cache_salt", f"longer than {MAX_SALT_CHARS} characters"),))


def reservation_tokens(request: AnyRequest, info: EngineInfo) -> int:
    """An upper bound on the KV tokens a request can ask for, before its prompt is tokenised."""
    prompt = min(tokens_upper_bound(request.prompt), info.max_model_len)
    wanted = request.params.max_tokens if request.params.HasField("max_tokens") else info.default_max_tokens
    n = request.n if request.HasField("n") else 1
    return prompt + max(1, n) * max(1, min(wanted, info.max_model_len))


def engine_request(
    request: AnyRequest,
    info: EngineInfo,
    *,
    request_id: str,
    arrival: float,
    deadline: float | None,
    tenant: str,
) -> GenerateRequest:
    """The request as the engine takes it, but for its prompt. An absent max_tokens is the least it can become."""
    params = request.params
    least = min(max(1, params.min_tokens), info.default_max_tokens, info.max_model_len)
    return GenerateRequest(
        request_id=request_id,
        prompt_token_ids=(),
        params=_sampling_params(params, params.max_tokens if params.HasField("max_tokens") else least),
        n=request.n if request.HasField("n") else 1,
        priority=request.priority if request.HasField("priority") else DEFAULT_PRIORITY,
        arrival=arrival,
        deadline=deadline,
        tenant=tenant,
        cache_salt=request.cache_salt,
    )


def with_prompt(
    draft: GenerateRequest, request: AnyRequest, prompt_token_ids: tuple[int, ...], info: EngineInfo
) -> GenerateRequest:
    """The whole request. An absent max_tokens becomes the default, at most what the length leaves.

    The last token is sampled and never computed, so a prompt of the model's whole length leaves room for one.
    """
    if request.params.HasField("max_tokens"):
        return replace(draft, prompt_token_ids=prompt_token_ids)
    room = info.max_model_len - len(prompt_token_ids) + 1
    params = replace(draft.params, max_tokens=max(1, min(info.default_max_tokens, room)))
    return replace(draft, prompt_token_ids=prompt_token_ids, params=params)


def _sampling_params(params: pb.SamplingParams, max_tokens: int) -> SamplingParams:
    given: dict[str, Any] = {name: getattr(params, name) for name in _PRESENCE if params.HasField(name)}
    given.update({name: getattr(params, name) for name in _PLAIN})
    return SamplingParams(
        max_tokens=max_tokens,
        logit_bias=tuple(sorted(params.logit_bias.items())),
        stop=tuple(params.stop),
        stop_token_ids=tuple(params.stop_token_ids),
        **given,
    )


@contextmanager
def api_field_names() -> Iterator[None]:
    """Say `params.top_p` where the engine says `top_p`: violations name fields as the caller wrote them."""
    try:
        yield
    except InvalidRequestError as error:
        raise InvalidRequestError(
            tuple(replace(v, field=f"params.{v.field}" if v.field in _PARAMS else v.field) for v in error.violations)
        ) from None
