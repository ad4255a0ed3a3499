"""When a choice ends: stop tokens, end-of-sequence, length, and stop strings, decided in one place."""

from __future__ import annotations

from collections.abc import Iterable

from weir.engine.detokenizer import TextStream
from weir.engine.request import ChoiceFinish, FinishReason, SamplingParams


def stop_token_ids(params: SamplingParams, eos_token_ids: Iterable[int]) -> frozenset[int]:
    """The tokens that end a choice: the request's own, and the model's (every one) unless ignore_eos."""
    own = frozenset(params.stop_token_ids)
    return own if params.ignore_eos else own.union(eos_token_ids)


class StopRule:
    """Decides after each token whether it was the last.

    A stop token counts only after `min_tokens` outputs. `max_output_tokens` is what the model length leaves; the
    smaller of it and `params.max_tokens` ends the choice with LENGTH, after at least one token.
    """

    __slots__ = ("_limit", "_min_tokens", "_own", "_stops", "include_stop")

    def __init__(self, params: SamplingParams, eos_token_ids: Iterable[int], max_output_tokens: int) -> None:
        self._own = frozenset(params.stop_token_ids)
        self._stops = stop_token_ids(params, eos_token_ids)
        self._min_tokens = params.min_tokens
        self._limit = min(params.max_tokens, max_output_tokens)
        self.include_stop = params.include_stop

    def check(self, token_id: int, num_output: int) -> ChoiceFinish | None:
        """How the choice ended with `token_id`, its `num_output`-th output token (from 1), or None if it goes on."""
        if token_id in self._stops and num_output > self._min_tokens:
            return ChoiceFinish(FinishReason.STOP, token_id if token_id in self._own else None)
        if num_output >= self._limit:
            return ChoiceFinish(FinishReason.LENGTH)
        return None


def accept_token(rule: StopRule, stream: TextStream, token_id: int, num_output: int) -> tuple[str, ChoiceFinish | None]:
    """Take one sampled token: the text that became certain, and how the choice ended if it did.

    The text of a stop token is left out unless include_stop (a special token has no text in any case). A stop string
    in the text takes precedence over the token that completed it, so the reason is STOP even at max_tokens.
    """
    finish = rule.check(token_id, num_output)
    trimmed = finish is not None and finish.reason is FinishReason.STOP and not rule.include_stop
    text = "" if trimmed else stream.push(token_id)
    if finish is not None and stream.stopped is None:
        text += stream.finish()
    if stream.stopped is not None:
        finish = ChoiceFinish(FinishReason.STOP, stream.stopped)
    return text, finish
