"""When a call's caller gives up, and whether that is why the call ended."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import grpc

# The client's own timer ends the call, and its reset arrives while the server's timer is about to fire.
SLACK_S = 0.05


@dataclass(frozen=True, slots=True)
class Deadline:
    """`at` in seconds of time.monotonic(); `slack_s`: how much later than the caller's own clock it may be."""

    at: float
    slack_s: float

    @classmethod
    def of(cls, context: grpc.aio.ServicerContext) -> Deadline | None:
        """The deadline of a call that has just arrived; None if it has none."""
        remaining_s = context.time_remaining()
        if remaining_s is None:
            return None
        return cls(time.monotonic() + remaining_s, SLACK_S + _rounding_s(remaining_s))

    def explains_an_end_now(self) -> bool:
        """Whether an end that gRPC tells of now is the deadline: a cancelled call ends by the same event."""
        return time.monotonic() >= self.at - self.slack_s


def _rounding_s(timeout_s: float) -> float:
    """gRPC rounds a timeout of a second or more up to three digits when it sends it."""
    return float(10.0 ** (math.floor(math.log10(timeout_s)) - 2)) if timeout_s >= 1 else 0.0
