"""How large an answer can get on the wire: protobuf's own arithmetic, before anything is computed.

What a request asks for by number is counted: token ids, log-probabilities and alternatives. Text is not, as nothing
short of generating it bounds it well; an answer whose text alone outgrows a message ends when it does.
"""

from __future__ import annotations

from dataclasses import dataclass

from weir.engine.errors import InvalidRequestError, Violation
from weir.engine.request import GenerateRequest
from weir.server.backlog import MAX_STREAM_MESSAGE_BYTES

_TAG = 1  # fields 1 to 15
_FLOAT = 4
# Ids, counts, durations, and the tags of what stands around the tokens.
_FIXED_BYTES = 1024
_CHOICE_BYTES = 64


@dataclass(frozen=True, slots=True)
class StreamPieces:
    """How much of an answer goes into one message of a stream: tokens and prompt scores, and characters of text.

    A message is at most three quarters full of them, which leaves a quarter for the rest.
    """

    tokens: int
    prompt_scores: int
    chars: int


def scored_token_bytes(alternatives: int, vocab_size: int) -> int:
    """A TokenLogprob within a repeated field, at most."""
    token_id = _TAG + varint_bytes(vocab_size - 1)
    alternative = token_id + _TAG + _FLOAT
    body = token_id + _TAG + _FLOAT + alternatives * (_TAG + varint_bytes(alternative) + alternative)
    return _TAG + varint_bytes(body) + body


def varint_bytes(value: int) -> int:
    """Bytes of a non-negative number in protobuf's base-128 encoding."""
    return max(1, (value.bit_length() + 6) // 7)


def stream_pieces(request: GenerateRequest, vocab_size: int, max_message_bytes: int) -> StreamPieces:
    """What fits into a message of this request's stream."""
    quarter = min(MAX_STREAM_MESSAGE_BYTES, max_message_bytes) // 4
    params = request.params
    token = varint_bytes(vocab_size - 1) + _scores_bytes(params.logprobs, vocab_size)
    return StreamPieces(
        tokens=max(1, quarter // token),
        prompt_scores=max(1, quarter // max(1, _scores_bytes(params.prompt_logprobs, vocab_size))),
        chars=quarter // 4,
    )


def check_stream(request: GenerateRequest, vocab_size: int, max_message_bytes: int) -> None:
    """Raise InvalidRequestError when the scores of one single token would not fit into a message."""
    quarter = min(MAX_STREAM_MESSAGE_BYTES, max_message_bytes) // 4
    params = request.params
    asked = (("logprobs", params.logprobs), ("prompt_logprobs", params.prompt_logprobs))
    violations = tuple(
        Violation(name, f"{wanted} alternatives of one token take up to {size} bytes; there is room for {quarter}")
        for name, wanted in asked
        if (size := _scores_bytes(wanted, vocab_size)) > quarter
    )
    if violations:
        raise InvalidRequestError(violations)


def check_unary(request: GenerateRequest, vocab_size: int, max_message_bytes: int) -> None:
    """Raise InvalidRequestError when the answer may be larger than a message."""
    params, prompt_tokens = request.params, len(request.prompt_token_ids)
    tokens = request.n * params.max_tokens
    by_field = {
        "max_tokens": tokens * varint_bytes(vocab_size - 1),
        "logprobs": tokens * _scores_bytes(params.logprobs, vocab_size),
        "prompt_logprobs": prompt_tokens * _scores_bytes(params.prompt_logprobs, vocab_size),
    }
    most = _FIXED_BYTES + request.n * _CHOICE_BYTES + sum(by_field.values())
    if most <= max_message_bytes:
        return
    reason = (
        f"the answer may take {most} bytes (prompt {prompt_tokens} tokens, n {request.n}, max_tokens "
        f"{params.max_tokens}) and a message holds {max_message_bytes}; ask for less, or use Generate"
    )
    # Every field that is a good part of it: any of them, made smaller, helps.
    raise InvalidRequestError(
        tuple(Violation(name, reason) for name, size in by_field.items() if 4 * size > max_message_bytes)
    )


def _scores_bytes(alternatives: int | None, vocab_size: int) -> int:
    return 0 if alternatives is None else scored_token_bytes(alternatives, vocab_size)
