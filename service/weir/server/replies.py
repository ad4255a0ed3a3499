"""From the engine's events to API messages: a message a step for streams, one message for unary calls."""

from __future__ import annotations

from collections.abc import Iterable

from weir.engine.request import Admitted, ChoiceFinish, Delta, Done, Event, FinishReason, GenerateRequest, TokenLogprobs
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

    def __init__(self, request: GenerateRequest) -> None:
        self._request_id = request.request_id
        self._unfinished = request.n
        self._held = pb.GenerateResponse()

    def push(self, event: Event) -> pb.GenerateResponse | None:
        """The message to send for an event, if it calls for one now."""
        match event:
            case Admitted():
                return pb.GenerateResponse(started=_started(self._request_id, event))
            case Delta():
                message = pb.GenerateResponse(
                    deltas=[_delta(event)], prompt_logprobs=_prompt_logprobs(event.prompt_logprobs or ())
                )
                self._unfinished -= event.finish is not None
                if self._unfinished:
                    return message
                self._held = message
                return None
            case Done():
                self._held.done.CopyFrom(pb.Done(usage=_usage(event), timings=_timings(event)))
                return self._held
            case _:
                return None


class UnaryReply:
    """The one message of a Complete call, gathered."""

    def __init__(self, request: GenerateRequest) -> None:
        self._texts: list[list[str]] = [[] for _ in range(request.n)]
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
                self.message.prompt_logprobs.extend(_prompt_logprobs(event.prompt_logprobs or ()))
                if event.finish is not None:
                    choice.finish.CopyFrom(_finish(event.finish))
            case Done():
                for choice, texts in zip(self.message.choices, self._texts, strict=True):
                    choice.text = "".join(texts)
                self.message.usage.CopyFrom(_usage(event))
                self.message.timings.CopyFrom(_timings(event))


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
