"""What a chat template may use: steps, room and time. Templates come with checkpoints, whoever wrote them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Set, ValuesView
from dataclasses import dataclass
from typing import Any

import jinja2
from jinja2.utils import Namespace

# A step is a call, a node of the body for each turn of a loop, an entry of a list, or this much text that is made: so
# steps bound memory as they bound time.
_CHARS_A_STEP = 16
_STEPS_A_LOOK = 200
_MOST_BITS = 2048
_Container = list | tuple | Mapping | Set | ValuesView  # type: ignore[type-arg]


class TemplateLimitError(jinja2.TemplateError):
    """The template wants more than it may use."""


@dataclass(frozen=True, slots=True)
class RenderLimits:
    """What any render may use; the messages of a conversation and their characters add to it.

    chars: of the text, and of any value on the way to it, written out. cpu_s: seconds of the thread that renders.
    """

    chars: int = 1_000_000
    chars_a_char: int = 4
    chars_a_message: int = 128
    steps: int = 500_000
    steps_a_char: int = 1
    steps_a_message: int = 1000
    cpu_s: float = 3.0
    cpu_s_a_message: float = 100e-6

    def meter(self, messages: int, chars: int) -> Meter:
        """For one render of so many messages with so many characters."""
        return Meter(
            self.chars + messages * self.chars_a_message + chars * self.chars_a_char,
            self.steps + messages * self.steps_a_message + chars * self.steps_a_char,
            self.cpu_s + messages * self.cpu_s_a_message,
        )


class Meter:
    """Counts what one render uses. Every method raises TemplateLimitError when that is too much."""

    __slots__ = ("_chars", "_cpu_s", "_look", "_sizes", "_steps", "_until")

    def __init__(self, chars: int, steps: int, cpu_s: float) -> None:
        self._chars = chars
        self._steps = steps
        self._look = steps
        self._cpu_s = cpu_s
        self._until = time.thread_time() + cpu_s
        # By identity, which lasts as long as the value is held: nothing can change a list in the sandbox.
        self._sizes: dict[int, tuple[Any, int]] = {}

    def spend(self, steps: int) -> None:
        """Take steps."""
        self._steps -= steps
        if self._steps < self._look:
            self._look_at_the_clock()

    def fits(self, chars: int) -> None:
        """May a value take so many characters when it is written out?"""
        if chars > self._chars:
            raise TemplateLimitError(f"it makes something of {chars} characters; at most {self._chars} are allowed")

    def made(self, value: Any) -> Any:
        """Count a value that exists, and hand it on."""
        if isinstance(value, str | bytes):
            length = len(value)
            if length > self._chars:
                self.fits(length)
            self._steps -= 1 + length // _CHARS_A_STEP
        elif isinstance(value, _Container):
            self._steps -= 1 + len(value)
            self.size(value)
        else:
            self._steps -= 1
        if self._steps < self._look:
            self._look_at_the_clock()
        return value

    def _look_at_the_clock(self) -> None:
        if self._steps < 0:
            raise TemplateLimitError("it takes too many steps")
        self._look = self._steps - _STEPS_A_LOOK
        if time.thread_time() > self._until:
            raise TemplateLimitError(f"it takes more than {self._cpu_s:.2g} s")

    def size(self, value: Any) -> int:
        """About how many characters `str(value)` has: as a list may hold another many times, far more than entries."""
        if isinstance(value, str | bytes):
            return len(value)
        if isinstance(value, Namespace):
            return sum(map(self.size, object.__getattribute__(value, "_Namespace__attrs").values()))
        if not isinstance(value, _Container):
            return 16
        known = self._sizes.get(id(value))
        if known is not None:
            return known[1]
        size = 0
        for entry in [*value.keys(), *value.values()] if isinstance(value, Mapping) else value:
            if isinstance(entry, Namespace):
                raise TemplateLimitError("it puts a namespace into a list")
            size += 4 + self.size(entry)
        self.fits(size)
        self._sizes[id(value)] = value, size
        return size

    def text(self, value: Any) -> str:
        """`str(value)`, if it fits."""
        if not isinstance(value, str):
            self.fits(self.size(value))
        return str(value)

    def joined(self, texts: Iterable[str], between: str = "") -> str:
        """The texts as one."""
        parts, length, most = [], 0, self._chars
        for text in texts:
            length += len(text) + len(between)
            if length > most:
                self.fits(length)
            self.spend(1)
            parts.append(text)
        self.spend(1 + length // _CHARS_A_STEP)
        return between.join(parts)

    def passing(self, values: Iterable[Any]) -> Iterator[Any]:
        """The values, as long as a list of them would fit."""
        size = 0
        for value in values:
            size += 4 + self.size(value)
            self.fits(size)
            self.spend(1)
            yield value

    def number(self, bits: int) -> None:
        """May a whole number of so many bits be made?"""
        if bits > _MOST_BITS:
            raise TemplateLimitError(f"it makes a number of {bits} bits; {_MOST_BITS} are allowed")
