"""From the times at which tokens came to the one rate that each workload is about."""

from __future__ import annotations

from collections.abc import Sequence

TokenTimes = Sequence[Sequence[float]]


def output_rate(times: TokenTimes, wall_s: float) -> float:
    """Output tokens a second of the whole run."""
    return sum(map(len, times)) / wall_s


def prefill_rate(prompt_tokens: int, wall_s: float) -> float:
    """Prompt tokens a second, when each request wants one output token."""
    return prompt_tokens / wall_s


def decode_rate(times: TokenTimes) -> float:
    """Tokens a second while every request decodes: from the last first token to the first last token.

    Raises ValueError when there is no such time: outputs are too short.
    """
    began, ended = max(t[0] for t in times), min(t[-1] for t in times)
    if ended <= began:
        raise ValueError("a request ended before the last one had its first token; make outputs longer")
    return sum(began < at <= ended for t in times for at in t) / (ended - began)
