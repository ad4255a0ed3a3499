"""A bounded ring between the event loop and the exporter thread: full means dropped, never waiting."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Ring(Generic[Item]):
    """One producer pushes, one consumer pops. Bounded in items and in their summed weight, so in memory too."""

    def __init__(self, max_items: int, max_weight: int) -> None:
        self._items: deque[tuple[int, Item]] = deque()
        self._max_items = max_items
        self._max_weight = max_weight
        # Each is written by one side only, so their difference needs no lock.
        self._pushed_weight = 0
        self._popped_weight = 0

    def __len__(self) -> int:
        return len(self._items)

    def push(self, item: Item, weight: int = 1) -> bool:
        """Append, or return False when that would pass a bound."""
        if len(self._items) >= self._max_items:
            return False
        if self._pushed_weight - self._popped_weight + weight > self._max_weight:
            return False
        self._pushed_weight += weight
        self._items.append((weight, item))
        return True

    def pop(self) -> Item | None:
        """The oldest item, or None when there is none."""
        if not self._items:
            return None
        weight, item = self._items.popleft()
        self._popped_weight += weight
        return item
