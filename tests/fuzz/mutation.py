"""Valid inputs, damaged: somewhere in their tree, or somewhere in their bytes."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

# What breaks a check that looks at the type and not at the range, or the other way round.
_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 3, 7, 2**15, 2**31 - 1, 2**31, 2**32, 2**53, 2**63, 2**64, -(2**63), 10**30),
    *(0.0, -0.0, 0.5, 1e-320, 1e308, -1e308, float("inf"), float("-inf"), float("nan")),
    *(
        "",
        " ",
        "0",
        "2",
        "x" * 70_000,
        "\0",
        "é\u2028",
        "\ud800",
        "../x",
        "/etc/passwd",
        "torch.bfloat16",
        "{{ 1 / 0 }}",
    ),
    *([], {}, [None], [[]], [{}], {"": None}, {"type": None}, {"type": "Sequence"}, [0] * 3000, [2, None], ["2"]),
)
_CHUNKS = (
    b"\0",
    b"\xff" * 8,
    b"\x80" * 11,
    b"{",
    b"}",
    b"[" * 3000,
    b'"',
    b",",
    b"\n",
    b"\\u",
    b"%}",
    b"{{",
    b"\xed\xa0\x80",
)
_MOST_CHANGES = 4


def damaged_json(dice: random.Random, tree: Any) -> bytes:
    """The tree as JSON, with values replaced, removed, moved or nested; of six, one has its bytes damaged too."""
    tree = copy.deepcopy(tree)
    for _ in range(dice.randint(1, _MOST_CHANGES)):
        tree = _change(dice, tree)
    data = json.dumps(tree).encode()
    return damaged_bytes(dice, data) if dice.random() < 1 / 6 else data


def damaged_bytes(dice: random.Random, data: bytes) -> bytes:
    """Bytes flipped, cut out, repeated, put in or cut off."""
    changed = bytearray(data)
    for _ in range(dice.randint(1, _MOST_CHANGES)):
        at, size = dice.randint(0, len(changed)), dice.choice((1, 1, 2, 4, 8, 64))
        match dice.randrange(5):
            case 0 if at < len(changed):
                changed[at] ^= 1 << dice.randrange(8)
            case 1:
                del changed[at : at + size]
            case 2:
                changed[at:at] = changed[at : at + size] * dice.choice((1, 2, 50))
            case 3:
                changed[at:at] = dice.choice(_CHUNKS)
            case _:
                del changed[at : at + 1 if dice.random() < 0.8 else None]
    return bytes(changed)


def any_value(dice: random.Random) -> Any:
    """A value that JSON can hold."""
    return copy.deepcopy(dice.choice(_VALUES))


def _change(dice: random.Random, tree: Any) -> Any:
    places = list(_places(tree))
    if not places:
        return any_value(dice)
    container, key = dice.choice(places)
    match dice.randrange(6):
        case 0 | 1:
            container[key] = any_value(dice)
        case 2:
            del container[key]
        case 3:
            other, there = dice.choice(places)
            # The place may lie within what was taken out before.
            container[key] = copy.deepcopy(other[there])
        case 4:
            container[key] = _nested(container[key], dice.choice((1, 2, 100)))
        case _ if isinstance(container[key], int | float) and not isinstance(container[key], bool):
            container[key] = container[key] * dice.choice((-1, 0, 2, 10**9)) + dice.choice((-1, 0, 1, 0.5))
        case _:
            container[key] = any_value(dice)
    return tree


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) of a tree."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        yield tree, key
        yield from _places(value)


def _nested(value: Any, depth: int) -> Any:
    for _ in range(depth):
        value = [value]
    return value
