"""How long a newcomer will wait: queued tokens over the rate at which the engine has been admitting them."""

from __future__ import annotations

import math

_HALF_LIFE_S = 15.0
_LONGEST_S = 600.0


class WaitEstimate:
    """Exponentially decayed admission rate, measured only while somebody waits (an idle engine admits slowly)."""

    def __init__(self, default_tokens_per_s: float = 1000.0) -> None:
        # One second of a plain guess, so that the first estimates are finite; real admissions soon outweigh it.
        self._tokens = default_tokens_per_s
        self._seconds = 1.0

    def observe(self, admitted_tokens: int, waited_s: float) -> None:
        """During `waited_s` seconds, in which somebody waited, requests with `admitted_tokens` were admitted."""
        keep = math.exp2(-waited_s / _HALF_LIFE_S)
        self._tokens = self._tokens * keep + admitted_tokens
        self._seconds = self._seconds * keep + waited_s

    @property
    def tokens_per_s(self) -> float:
        """Prompt + output tokens admitted a second of waiting."""
        return self._tokens / max(self._seconds, 1e-9)

    def seconds(self, tokens_ahead: int) -> float:
        """Expected wait of a request that has this many tokens waiting before it, at most ten minutes."""
        return min(tokens_ahead / max(self.tokens_per_s, 1e-9), _LONGEST_S)
