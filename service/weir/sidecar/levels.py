"""From numbers that change every step to a few levels that change seldom."""

from __future__ import annotations

from itertools import pairwise

from weir.sidecar.engine_link import EngineView

# A request in flight outweighs any amount of warm cache: one level of it is worth more than all levels of warmth.
IN_FLIGHT_WEIGHT = 100


class Levels:
    """The level of a value between ascending edges, with hysteresis.

    The level rises when the value reaches an edge, and falls only when it is `slack` (a share of the edge) below it.
    """

    def __init__(self, edges: tuple[float, ...], slack: float = 0.2) -> None:
        if any(high <= low for low, high in pairwise(edges)) or not edges or edges[0] <= 0:
            raise ValueError(f"edges must be positive and ascend: {edges}")
        if not 0 <= slack < 1:
            raise ValueError(f"slack must be at least 0 and below 1: {slack}")
        self._edges = edges
        self._slack = slack
        self.level = 0

    def update(self, value: float) -> int:
        """The level of `value`, given where it was before."""
        while self.level < len(self._edges) and value >= self._edges[self.level]:
            self.level += 1
        while self.level > 0 and value < self._edges[self.level - 1] * (1 - self._slack):
            self.level -= 1
        return self.level


class DeletionCost:
    """What is lost with the pod, as an int32: work in flight first, then the warmth of its prefix cache."""

    def __init__(self) -> None:
        self._in_flight = Levels((1, 2, 4, 8, 16, 32, 64, 128))
        self._warmth = Levels((0.1, 0.25, 0.5, 0.75))

    def update(self, view: EngineView) -> int:
        """The cost now: 0 for an idle, cold pod, at most 804."""
        return self._in_flight.update(view.in_flight) * IN_FLIGHT_WEIGHT + self._warmth.update(view.cached_share)
