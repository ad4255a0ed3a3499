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
# Fields whose absence the API tells from their zero; the others are passed on as they are.
_PRESENCE = ("temperature", "top_p", "repetition_penalty", "seed", "logprobs", "prompt_logprobs")
_PLAIN = ("min_tokens", "top_k", "min_p", "presence_penalty", "frequency_penalty", "ignore_eos", "include_stop")

_PARAMS = frozenset(field.name for field in fields(SamplingParams))

AnyRequest = pb.GenerateRequest | pb.CompleteRequest


def check_model(name: str, info: EngineInfo) -> None:
    """Raise InvalidRequestError unless `name` is empty or the served model's."""
    if name and name != info.model_name:
        raise InvalidRequestError((Violation("model", f"{name!r} is not served here; {info.model_name!r} is"),))


def check_tenant(tenant: str) -> None:
    """Raise InvalidRequestError for a tenant id that is too long to keep."""
    if len(tenant) > MAX_TENANT_CHARS:
        raise InvalidRequestError((Violation("x-tenant-id", f"longer than {MAX_TENANT_CHARS} characters"),))


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
    prompt_token_ids: tuple[int, ...],
    arrival: float,
    deadline: float | None,
    tenant: str,
) -> GenerateRequest:
    """The request as the engine takes it. An absent max_tokens becomes the default, at most what the length leaves.

    The last token is sampled and never computed, so a prompt of the model's whole length leaves room for one.
    """
    room = info.max_model_len - len(prompt_token_ids) + 1
    params = request.params
    return GenerateRequest(
        request_id=request_id,
        prompt_token_ids=prompt_token_ids,
        params=_sampling_params(params, default_max_tokens=max(1, min(info.default_max_tokens, room))),
        n=request.n if request.HasField("n") else 1,
        priority=request.priority if request.HasField("priority") else DEFAULT_PRIORITY,
        arrival=arrival,
        deadline=deadline,
        tenant=tenant,
        cache_salt=request.cache_salt,
    )


def _sampling_params(params: pb.SamplingParams, default_max_tokens: int) -> SamplingParams:
    given: dict[str, Any] = {name: getattr(params, name) for name in _PRESENCE if params.HasField(name)}
    given.update({name: getattr(params, name) for name in _PLAIN})
    return SamplingParams(
        max_tokens=params.max_tokens if params.HasField("max_tokens") else default_max_tokens,
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
