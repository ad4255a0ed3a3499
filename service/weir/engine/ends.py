"""How many tokens a choice will still make: known when only its length ends it, else told from those that ended."""

from __future__ import annotations

from collections.abc import Callable

from weir.engine.request import SamplingParams

Remaining = Callable[[SamplingParams, int], int]
"""(params, tokens made so far) -> tokens still to come, at least 1."""

_KEPT_PER_END = 0.98


def earliest(params: SamplingParams, made: int) -> int:
    """The fewest: what may stop, stops with its next token (or its `min_tokens`-th)."""
    left = params.max_tokens - made
    return max(1, min(left, params.min_tokens - made + 1)) if _may_stop(params) else max(1, left)


class ExpectedEnds:
    """The expected number: of what is left up to max_tokens, the share that choices which could stop have made of late.

    Choices that could not are exact. Before the first end the share is 1.
    """

    def __init__(self) -> None:
        self._made = self._most = 0.0

    def observe(self, params: SamplingParams, made: int) -> None:
        """A choice has finished with `made` tokens."""
        if _may_stop(params):
            self._made = self._made * _KEPT_PER_END + made
            self._most = self._most * _KEPT_PER_END + params.max_tokens

    def remaining(self, params: SamplingParams, made: int) -> int:
        """Tokens still to come."""
        left = params.max_tokens - made
        if _may_stop(params) and self._most:
            left = round(left * self._made / self._most)
        return max(1, left, earliest(params, made))


def _may_stop(params: SamplingParams) -> bool:
    return not params.ignore_eos or bool(params.stop or params.stop_token_ids)
