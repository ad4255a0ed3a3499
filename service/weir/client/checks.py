"""Arguments that cannot be sent are refused by name, before anything is sent."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from weir.client.errors import InvalidRequestError, Violation, WrongTypeError

M = TypeVar("M", bound=Message)
Metadata = tuple[tuple[str, str], ...]

# gRPC cannot count much further; three years are as good as no limit.
LONGEST_TIMEOUT_S = 1e8
_SHOWN_CHARS = 80
_KEY = re.compile(r"[0-9a-z_.-]+")
_VALUE = re.compile(r"[\x20-\x7e]*")
_WHAT = {
    FieldDescriptor.CPPTYPE_INT32: "a 32-bit integer",
    FieldDescriptor.CPPTYPE_INT64: "a 64-bit integer",
    FieldDescriptor.CPPTYPE_UINT64: "an integer from 0 to 18446744073709551615",
    FieldDescriptor.CPPTYPE_DOUBLE: "a number",
    FieldDescriptor.CPPTYPE_BOOL: "true or false",
    FieldDescriptor.CPPTYPE_STRING: "text of valid Unicode",
}


def build(kind: type[M], path: str, values: Mapping[str, Any]) -> M:
    """`kind(**values)`. Raises InvalidRequestError naming each value that its field cannot hold as `path` + name."""
    try:
        return kind(**values)
    except (TypeError, ValueError, OverflowError) as error:
        raise _refusal(kind, path, values, error) from None


def metadata(pairs: Iterable[tuple[str, str]]) -> Metadata:
    """The metadata of a call as gRPC can send it. Raises InvalidRequestError."""
    try:
        found = tuple((key, value) for key, value in pairs)
    except (TypeError, ValueError):
        raise WrongTypeError.of([Violation("metadata", f"must be pairs of text, got {shown(pairs)}")]) from None
    for key, value in found:
        if not isinstance(key, str) or not _KEY.fullmatch(key):
            raise InvalidRequestError.of(
                [Violation("metadata", f"a key must be of 0-9, a-z, '_', '-' and '.', got {shown(key)}")]
            )
        if not key.endswith("-bin"):
            header(f"metadata {key}", value)
    return found


def header(field: str, value: str) -> str:
    """A value that may travel as text metadata. Raises InvalidRequestError."""
    if not isinstance(value, str):
        raise WrongTypeError.of([Violation(field, f"must be text, got {shown(value)}")])
    if not _VALUE.fullmatch(value):
        # The value may be a secret: say what is wrong with it, not what it is.
        wrong = next(character for character in value if not _VALUE.fullmatch(character))
        raise InvalidRequestError.of([Violation(field, f"must be printable ASCII, and has U+{ord(wrong):04X}")])
    return value


def seconds(field: str, value: float | None) -> float | None:
    """A timeout, within what gRPC can count; None and infinity are no limit. Raises InvalidRequestError."""
    if value is None:
        return None
    checked = number(field, value, at_least=0)
    return None if math.isinf(checked) else min(checked, LONGEST_TIMEOUT_S)


def number(field: str, value: float, *, at_least: float) -> float:
    """A number that is not below `at_least`. Raises InvalidRequestError."""
    if isinstance(value, bool) or not hasattr(value, "__float__"):
        raise WrongTypeError.of([Violation(field, f"must be a number, got {shown(value)}")])
    try:
        checked = float(value)
    except OverflowError:
        checked = math.inf if value > 0 else -math.inf
    if not checked >= at_least:
        raise InvalidRequestError.of([Violation(field, f"must be at least {at_least:g}, got {shown(value)}")])
    return checked


def whole(field: str, value: int, *, at_least: int, at_most: int = 2**31 - 1) -> int:
    """An integer from `at_least` to `at_most`. Raises InvalidRequestError."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise WrongTypeError.of([Violation(field, f"must be an integer, got {shown(value)}")])
    if not at_least <= value <= at_most:
        raise InvalidRequestError.of(
            [Violation(field, f"must be an integer from {at_least} to {at_most}, got {shown(value)}")]
        )
    return value


def shown(value: object) -> str:
    """A value as an error shows it."""
    try:
        text = repr(value)
    except ValueError:  # an integer of more digits than Python prints
        text = f"a {type(value).__name__} too large to show"
    return text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 1] + "…"


def _refusal(kind: type[Message], path: str, values: Mapping[str, Any], error: Exception) -> InvalidRequestError:
    found = (_violation(kind, name, f"{path}{name}", value) for name, value in values.items())
    # An iterator that was used up on the way shows nothing wrong any more.
    violations = [one for one in found if one is not None] or [Violation(path.rstrip("."), str(error))]
    return (WrongTypeError if isinstance(error, TypeError) else InvalidRequestError).of(violations)


def _violation(kind: type[Message], name: str, path: str, value: Any) -> Violation | None:
    """What the field needs and what it got; None if it can hold the value."""
    field = kind.DESCRIPTOR.fields_by_name[name]
    if _holds(kind, name, value):
        return None
    if field.message_type is not None:
        # The only messages given as values are the entries of a map.
        key, held = (_WHAT[field.message_type.fields_by_name[part].cpp_type] for part in ("key", "value"))
        return Violation(path, f"must map {key} to {held}, got {shown(value)}")
    what = _WHAT[field.cpp_type]
    if not field.is_repeated:
        return Violation(path, f"must be {what}, got {shown(value)}")
    if isinstance(value, list | tuple):
        for place, item in enumerate(value):
            if not _holds(kind, name, [item]):
                return Violation(f"{path}[{place}]", f"must be {what}, got {shown(item)}")
    return Violation(path, f"must be a list, each {what}, got {shown(value)}")


def _holds(kind: type[Message], name: str, value: Any) -> bool:
    try:
        kind(**{name: value})
    except (TypeError, ValueError, OverflowError):
        return False
    return True
