"""Is a request possible at all? Checked before it is queued; every wrong field is reported, with what is allowed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from weir.engine.budget import blocks_needed, kv_tokens_needed
from weir.engine.errors import InvalidRequestError, Violation
from weir.engine.request import GenerateRequest, SamplingParams


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """What this engine can do and allows; see EngineSettings."""

    vocab_size: int
    max_model_len: int
    block_size: int
    kv_blocks: int
    max_running: int
    max_choices: int
    max_logprobs: int
    max_stop_strings: int
    max_stop_string_chars: int
    max_logit_bias: int


def validate(request: GenerateRequest, limits: RequestLimits, kv_share: float = 1.0) -> None:
    """Raise InvalidRequestError naming every field that makes `request` impossible; `kv_share` is the tenant's."""
    ids = request.prompt_token_ids
    _refuse(
        *_prompt(ids, limits),
        *_sizes(request, len(ids), limits, int(kv_share * limits.kv_blocks)),
        *_numbers(request.params),
        *_lists(request.params, limits),
    )


def validate_before_prompt(request: GenerateRequest, limits: RequestLimits, kv_share: float = 1.0) -> None:
    """The same for a request whose prompt is not known yet: whatever it will be, it is a token at least."""
    _refuse(
        *_sizes(request, 1, limits, int(kv_share * limits.kv_blocks)),
        *_numbers(request.params),
        *_lists(request.params, limits),
    )


def _refuse(*violations: Violation) -> None:
    if violations:
        raise InvalidRequestError(violations)


def _prompt(ids: Sequence[int], limits: RequestLimits) -> Iterator[Violation]:
    if not ids:
        yield Violation("prompt", "is empty: at least one token is needed")
    elif len(ids) > limits.max_model_len:
        yield Violation("prompt", f"has {len(ids)} tokens; the model takes {limits.max_model_len}")
    # min and max look at 100,000 ids in two milliseconds; only a wrong prompt is searched.
    elif not (min(ids) >= 0 and max(ids) < limits.vocab_size):
        bad = next(i for i, token in enumerate(ids) if not 0 <= token < limits.vocab_size)
        yield Violation("prompt", f"token id {ids[bad]} at position {bad} is not in 0..{limits.vocab_size - 1}")


def _sizes(request: GenerateRequest, prompt: int, limits: RequestLimits, usable_blocks: int) -> Iterator[Violation]:
    params = request.params
    if params.max_tokens < 1:
        yield Violation("max_tokens", f"must be at least 1, got {params.max_tokens}")
        return
    most_choices = min(limits.max_choices, limits.max_running)
    if not 1 <= request.n <= most_choices:
        yield Violation("n", f"must be in 1..{most_choices}, got {request.n}")
        return
    if not 0 <= request.priority <= 9:
        yield Violation("priority", f"must be in 0..9 (0 is served first), got {request.priority}")
    if not 0 <= params.min_tokens <= params.max_tokens:
        yield Violation("min_tokens", f"must be in 0..max_tokens ({params.max_tokens}), got {params.min_tokens}")
    if prompt > limits.max_model_len:
        return
    if kv_tokens_needed(prompt, params.max_tokens) > limits.max_model_len:
        most = limits.max_model_len - prompt + 1
        yield Violation(
            "max_tokens",
            f"{params.max_tokens} after a prompt of {_tokens(prompt)} is more than the model length "
            f"{limits.max_model_len} leaves ({most})",
        )
    elif (needed := blocks_needed(prompt, params.max_tokens, request.n, limits.block_size)) > usable_blocks:
        yield Violation(
            "max_tokens",
            f"the request needs {needed * limits.block_size} KV tokens "
            f"(prompt {prompt}, max_tokens {params.max_tokens}, n {request.n}); "
            f"at most {usable_blocks * limits.block_size} can ever be free for it",
        )


def _tokens(count: int) -> str:
    return "one token" if count == 1 else f"{count} tokens"


def _numbers(params: SamplingParams) -> Iterator[Violation]:
    for name, value, lowest, highest in (
        ("temperature", params.temperature, 0.0, 100.0),
        ("min_p", params.min_p, 0.0, 1.0),
        ("presence_penalty", params.presence_penalty, -2.0, 2.0),
        ("frequency_penalty", params.frequency_penalty, -2.0, 2.0),
    ):
        if not (math.isfinite(value) and lowest <= value <= highest):
            yield Violation(name, f"must be in {lowest:g}..{highest:g}, got {value:g}")
    for name, value, highest in (
        ("top_p", params.top_p, 1.0),
        ("repetition_penalty", params.repetition_penalty, 100.0),
    ):
        if not (math.isfinite(value) and 0.0 < value <= highest):
            yield Violation(name, f"must be above 0 and at most {highest:g}, got {value:g}")
    if params.top_k < 0:
        yield Violation("top_k", f"must be 0 (off) or positive, got {params.top_k}")
    if params.seed is not None and not 0 <= params.seed < 2**64:
        yield Violation("seed", f"must be an unsigned 64-bit number, got {params.seed}")


def _lists(params: SamplingParams, limits: RequestLimits) -> Iterator[Violation]:
    # Each list is looked into only when it is no longer than allowed.
    vocabulary = f"0..{limits.vocab_size - 1}"
    if len(params.stop) > limits.max_stop_strings:
        yield Violation("stop", f"at most {limits.max_stop_strings} strings, got {len(params.stop)}")
    else:
        wrong = [len(text) for text in params.stop if not 1 <= len(text) <= limits.max_stop_string_chars]
        if wrong:
            yield Violation("stop", f"each string has 1..{limits.max_stop_string_chars} characters, got {wrong[0]}")
    if len(params.stop_token_ids) > limits.max_stop_strings:
        yield Violation("stop_token_ids", f"at most {limits.max_stop_strings} ids, got {len(params.stop_token_ids)}")
    elif any(not 0 <= token < limits.vocab_size for token in params.stop_token_ids):
        yield Violation("stop_token_ids", f"every id must be in {vocabulary}")
    if len(params.logit_bias) > limits.max_logit_bias:
        yield Violation("logit_bias", f"at most {limits.max_logit_bias} entries, got {len(params.logit_bias)}")
    else:
        if any(not 0 <= token < limits.vocab_size for token, _ in params.logit_bias):
            yield Violation("logit_bias", f"every id must be in {vocabulary}")
        if any(not (math.isfinite(bias) and abs(bias) <= 100.0) for _, bias in params.logit_bias):
            yield Violation("logit_bias", "every bias must be in -100..100")
    for name, wanted in (("logprobs", params.logprobs), ("prompt_logprobs", params.prompt_logprobs)):
        if wanted is not None and not 0 <= wanted <= limits.max_logprobs:
            yield Violation(name, f"must be in 0..{limits.max_logprobs}, got {wanted}")
