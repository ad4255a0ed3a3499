"""From API messages to the client's values."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import fields

from weir.client.errors import Failure, ServerError
from weir.client.values import (
    Budget,
    Choice,
    Completion,
    Delta,
    FinishReason,
    ModelInfo,
    Timings,
    TokenLogprob,
    Usage,
)
from weir.v1 import budget_pb2
from weir.v1 import inference_pb2 as pb

_REASONS: dict[int, FinishReason] = {pb.FINISH_REASON_STOP: "stop", pb.FINISH_REASON_LENGTH: "length"}


class StreamState:
    """What a stream has told so far. `usage` and `timings` come with its end, the rest with its start.

    `request_id` is what was asked for until the server says what it is.
    """

    def __init__(self, request_id: str | None = None) -> None:
        self.request_id = request_id
        self.prompt_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.max_tokens: int | None = None
        self.prompt_logprobs: tuple[TokenLogprob, ...] = ()
        self.usage: Usage | None = None
        self.timings: Timings | None = None
        self.deltas: deque[Delta] = deque()
        self.answered = False

    def add(self, message: pb.GenerateResponse) -> None:
        """Take in one message."""
        self.answered = True
        if message.HasField("started"):
            started = message.started
            self.request_id = started.request_id
            self.prompt_tokens = started.prompt_tokens
            self.cached_tokens = started.cached_tokens
            self.max_tokens = started.max_tokens
        if message.prompt_logprobs:
            # A server may spread them over messages.
            self.prompt_logprobs += _logprobs(message.prompt_logprobs)
        self.deltas.extend(map(_delta, message.deltas))
        if message.HasField("done"):
            self.usage = _usage(message.done.usage)
            self.timings = _timings(message.done.timings)


def completion(message: pb.CompleteResponse) -> Completion:
    """The value of a unary answer."""
    return Completion(
        request_id=message.request_id,
        choices=tuple(
            Choice(
                text=choice.text,
                token_ids=tuple(choice.token_ids),
                logprobs=_logprobs(choice.logprobs),
                finish_reason=_reason(choice.finish),
                stop=_stop(choice.finish),
            )
            for choice in message.choices
        ),
        prompt_logprobs=_logprobs(message.prompt_logprobs),
        usage=_usage(message.usage),
        timings=_timings(message.timings),
        max_tokens=message.max_tokens,
    )


def model_info(message: pb.GetModelResponse) -> ModelInfo:
    """The value of a GetModel answer."""
    values = {field.name: getattr(message, field.name) for field in fields(ModelInfo)}
    values["eos_token_ids"] = tuple(message.eos_token_ids)
    return ModelInfo(**values)


def budget(message: budget_pb2.Budget) -> Budget:
    """The value of a budget."""
    return Budget(**{field.name: getattr(message, field.name) for field in fields(Budget)})


def _delta(message: pb.Delta) -> Delta:
    finished = message.HasField("finish")
    return Delta(
        choice=message.choice,
        text=message.text,
        token_ids=tuple(message.token_ids),
        logprobs=_logprobs(message.logprobs),
        finish_reason=_reason(message.finish) if finished else None,
        stop=_stop(message.finish) if finished else None,
    )


def _reason(finish: pb.Finish) -> FinishReason:
    known = _REASONS.get(finish.reason)
    if known is None:
        message = f"the server ended a choice for reason {finish.reason}, which this client is too old to know"
        raise ServerError(Failure("UNKNOWN", message))
    return known


def _stop(finish: pb.Finish) -> str | int | None:
    match finish.WhichOneof("stop"):
        case "stop_string":
            return finish.stop_string
        case "stop_token_id":
            return finish.stop_token_id
        case _:
            return None


def _logprobs(items: Iterable[pb.TokenLogprob]) -> tuple[TokenLogprob, ...]:
    return tuple(
        TokenLogprob(
            token_id=item.token_id,
            logprob=item.logprob if item.HasField("logprob") else None,
            top=tuple((other.token_id, other.logprob) for other in item.top),
        )
        for item in items
    )


def _usage(message: pb.Usage) -> Usage:
    return Usage(message.prompt_tokens, message.completion_tokens, message.cached_tokens)


def _timings(message: pb.Timings) -> Timings:
    return Timings(message.queue_s, message.prefill_s, message.first_token_s, message.total_s)
