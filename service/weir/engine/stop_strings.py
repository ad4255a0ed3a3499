"""Find the leftmost stop string in text that arrives in pieces, and hold back no character without need.

An Aho-Corasick automaton (Aho and Corasick 1975, "Efficient string matching") reads each character once. Its state is
the longest suffix of the text that begins some stop string: exactly the characters that may not be sent yet.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True, slots=True)
class StopAutomaton:
    """Node 0 is the root. `depth[n]`: characters matched at n; `stop_length[n]`: longest stop that ends at n, or 0."""

    children: tuple[dict[str, int], ...]
    fail: tuple[int, ...]
    depth: tuple[int, ...]
    stop_length: tuple[int, ...]
    first_chars: frozenset[str]

    def step(self, node: int, char: str) -> int:
        """The node after reading `char`."""
        while char not in self.children[node]:
            if node == 0:
                return 0
            node = self.fail[node]
        return self.children[node][char]


@lru_cache(maxsize=128)
def compile_stop_strings(stops: tuple[str, ...]) -> StopAutomaton:
    """Build the automaton; the choices of one request, and requests with equal stops, share it.

    Raises ValueError for an empty stop string, which would match everywhere.
    """
    if "" in stops:
        raise ValueError("a stop string must have at least one character")
    children: list[dict[str, int]] = [{}]
    depth, stop_length = [0], [0]
    for stop in stops:
        node = 0
        for char in stop:
            if char not in children[node]:
                children[node][char] = len(children)
                children.append({})
                depth.append(depth[node] + 1)
                stop_length.append(0)
            node = children[node][char]
        stop_length[node] = len(stop)

    fail = [0] * len(children)
    queue = deque(children[0].values())
    while queue:
        node = queue.popleft()
        # Breadth first: the failure node is shallower, so its own entries are final by now.
        stop_length[node] = stop_length[node] or stop_length[fail[node]]
        for char, child in children[node].items():
            other = fail[node]
            while other and char not in children[other]:
                other = fail[other]
            fail[child] = children[other].get(char, 0)
            queue.append(child)
    return StopAutomaton(tuple(children), tuple(fail), tuple(depth), tuple(stop_length), frozenset(children[0]))


class StopScanner:
    """Passes text through until a stop string is found.

    The match that begins first wins; of two that begin at the same character, the one that is complete first (the
    shorter) wins, so that nothing is generated only to lengthen a stop. `found` is the match, or None.
    """

    __slots__ = ("_automaton", "_held", "_include_stop", "_match", "_match_start", "_node", "found")

    def __init__(self, automaton: StopAutomaton, include_stop: bool) -> None:
        self._automaton = automaton
        self._include_stop = include_stop
        self._node = 0
        self._held = ""
        # A complete stop string within `_held`, not yet final: one that begins earlier may still be completing.
        self._match = ""
        self._match_start = 0
        self.found: str | None = None

    def push(self, text: str) -> str:
        """Add text; return what is now certain. Must not be called once `found` is set."""
        automaton, node = self._automaton, self._node
        if node == 0 and automaton.first_chars.isdisjoint(text):
            return text
        held = self._held + text
        for end in range(len(self._held) + 1, len(held) + 1):
            node = automaton.step(node, held[end - 1])
            length = automaton.stop_length[node]
            if length and (not self._match or end - length < self._match_start):
                self._match, self._match_start = held[end - length : end], end - length
            if self._match and end - automaton.depth[node] >= self._match_start:
                return self._stop(held)
        certain = len(held) - automaton.depth[node]
        self._node, self._held = node, held[certain:]
        self._match_start -= certain
        return held[:certain]

    def finish(self) -> str:
        """No more text comes: a waiting match is final, and without one the held text is let go."""
        return self._stop(self._held) if self._match else self._held

    def _stop(self, held: str) -> str:
        self.found = self._match
        return held[: self._match_start] + (self._match if self._include_stop else "")
