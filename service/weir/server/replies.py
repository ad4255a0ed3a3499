"""From the engine's events to API messages: a message a step for streams, one message for unary calls."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from weir.engine.errors import AnswerTooLargeError
from weir.engine.request import Admitted, ChoiceFinish, Delta, Done, Event, FinishReason, GenerateRequest, TokenLogprobs
from weir.server.answer_size import StreamPieces
from weir.v1 import inference_pb2 as pb

_REASONS = {
    FinishReason.STOP: pb.FINISH_REASON_STOP,
    FinishReason.LENGTH: pb.FINISH_REASON_LENGTH,
}


class StreamReply:
    """The messages of one Generate call.

    The last choice's last delta is held back for the `done` that the engine sends right behind it: a stream message
    costs tens of microseconds on both sides, and a one-token answer needs two of them, not three.
    """

    def __init__(self, request: GenerateRequest, pieces: StreamPieces) -> None:
        self._request_id = request.request_id
        self._pieces = pieces
        self._unfinished = request.n
        self._held = pb.GenerateResponse()

    def push(self, event: Event) -> Iterator[pb.GenerateResponse]:
        """The messages to send for an event; most call for one. Each is made when it is asked for."""
        match event:
            case Admitted():
                yield pb.GenerateResponse(started=_started(self._request_id, event))
            case Delta():
                *before, last = parts_of(event, self._pieces)
                yield from map(_message, before)
                self._unfinished -= event.finish is not None
                if self._unfinished:
                    yield _message(last)
                else:
                    self._held = _message(last)
            case Done():
                self._held.done.CopyFrom(pb.Done(usage=_usage(event), timings=_timings(event)))
                yield self._held


def parts_of(event: Delta, most: StreamPieces) -> list[Delta]:
    """The delta, cut so that each part fits into a message; one part, unless it waited or scores a long prompt.

    Prompt scores come first; all but the last part of them come alone.
    """
    scores = event.prompt_logprobs or ()
    if len(event.token_ids) <= most.tokens and len(event.text) <= most.chars and len(scores) <= most.prompt_scores:
        return [event]
    empty = event._replace(token_ids=(), text="", logprobs=(), finish=None)
    parts = [
        empty._replace(prompt_logprobs=scores[start : start + most.prompt_scores])
        for start in range(0, len(scores) - most.prompt_scores, most.prompt_scores)
    ]
    last_scores = scores[len(parts) * most.prompt_scores :]
    count = max(1, math.ceil(len(event.token_ids) / most.tokens), math.ceil(len(event.text) / most.chars))
    for part in range(count):
        tokens = slice(part * most.tokens, (part + 1) * most.tokens)
        parts.append(
            event._replace(
                token_ids=event.token_ids[tokens],
                text=event.text[part * most.chars : (part + 1) * most.chars],
                logprobs=event.logprobs[tokens],
                prompt_logprobs=last_scores if part == 0 else (),
                finish=event.finish if part == count - 1 else None,
            )
        )
    return parts


class UnaryReply:
    """The one message of a Complete call, gathered. Raises AnswerTooLargeError when it outgrows a message."""

    def __init__(self, request: GenerateRequest, max_message_bytes: int) -> None:
        self._max_message_bytes = max_message_bytes
        self._texts: list[list[str]] = [[] for _ in range(request.n)]
        self._text_bytes = 0
        self.message = pb.CompleteResponse(
            request_id=request.request_id, choices=[pb.Choice() for _ in range(request.n)]
        )

    def push(self, event: Event) -> None:
        """Add an event."""
        match event:
            case Admitted():
                self.message.max_tokens = event.max_tokens
            case Delta():
                choice = self.message.choices[event.choice]
                choice.token_ids.extend(event.token_ids)
                choice.logprobs.extend(_logprob(item) for item in event.logprobs)
                self._texts[event.choice].append(event.text)
                self._text_bytes += len(event.text)
                self._check(self._text_bytes)
                self.message.prompt_logprobs.extend(_prompt_logprobs(event.prompt_logprobs or ()))
                if event.finish is not None:
                    choice.finish.CopyFrom(_finish(event.finish))
            case Done():
                for choice, texts in zip(self.message.choices, self._texts, strict=True):
                    choice.text = "".join(texts)
                self.message.usage.CopyFrom(_usage(event))
                self.message.timings.CopyFrom(_timings(event))
                self._check(self.message.ByteSize())

    def _check(self, num_bytes: int) -> None:
        if num_bytes > self._max_message_bytes:
            raise AnswerTooLargeError(num_bytes, self._max_message_bytes)


def _message(delta: Delta) -> pb.GenerateResponse:
    says_something = delta.token_ids or delta.text or delta.finish is not None
    return pb.GenerateResponse(
        deltas=[_delta(delta)] if says_something else [],
        prompt_logprobs=_prompt_logprobs(delta.prompt_logprobs or ()),
    )


def _started(request_id: str, event: Admitted) -> pb.Started:
    # The engine may know the request by another id than its caller does.
    return pb.Started(
        request_id=request_id,
        prompt_tokens=event.prompt_tokens,
        cached_tokens=event.cached_tokens,
        max_tokens=event.max_tokens,
        queue_s=event.queue_s,
    )


def _delta(event: Delta) -> pb.Delta:
    return pb.Delta(
        choice=event.choice,
        token_ids=event.token_ids,
        text=event.text,
        logprobs=[_logprob(item) for item in event.logprobs],
        finish=None if event.finish is None else _finish(event.finish),
    )


def _finish(finish: ChoiceFinish) -> pb.Finish:
    reason = _REASONS[finish.reason]
    match finish.stop:
        case str():
            return pb.Finish(reason=reason, stop_string=finish.stop)
        case int():
            return pb.Finish(reason=reason, stop_token_id=finish.stop)
        case None:
            return pb.Finish(reason=reason)


def _logprob(item: TokenLogprobs) -> pb.TokenLogprob:
    return pb.TokenLogprob(
        token_id=item.token_id,
        logprob=item.logprob,
        top=[pb.Alternative(token_id=token_id, logprob=logprob) for token_id, logprob in item.top],
    )


def _prompt_logprobs(items: Iterable[TokenLogprobs | None]) -> list[pb.TokenLogprob]:
    return [pb.TokenLogprob() if item is None else _logprob(item) for item in items]


def _usage(event: Done) -> pb.Usage:
    usage = event.usage
    return pb.Usage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        cached_tokens=usage.cached_tokens,
    )


def _timings(event: Done) -> pb.Timings:
    timings = event.timings
    return pb.Timings(
        queue_s=timings.queue_s,
        prefill_s=timings.prefill_s,
        first_token_s=timings.first_token_s,
        total_s=timings.total_s,
    )
