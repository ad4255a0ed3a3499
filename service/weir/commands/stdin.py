"""Text from outside: arguments and stdin are UTF-8, or are refused. A model would answer to something else."""

from __future__ import annotations

import os
import sys

from weir.commands.target import UsageError


def argument_text(name: str, text: str) -> str:
    """An argument as text, also where the locale does not say that it is UTF-8. Raises UsageError."""
    try:
        text.encode()
    except UnicodeEncodeError:
        # Python keeps the bytes that the locale could not read as surrogates.
        return _decoded(name, os.fsencode(text))
    return text


def all_text() -> str:
    """All of stdin. Raises UsageError."""
    if sys.stdin.isatty():
        print("type the prompt; Ctrl-D ends it", file=sys.stderr)
    return _decoded("stdin", sys.stdin.buffer.read())


def next_line(prompt: str) -> str | None:
    """The next line of stdin without its end; None after the last. Raises UsageError."""
    if sys.stdin.isatty():
        # Here Python's own line editing helps; a terminal sends what its locale says.
        try:
            return input(prompt)
        except EOFError:
            return None
        except UnicodeDecodeError as error:
            raise UsageError(f"stdin is not UTF-8: it has the byte 0x{error.object[error.start]:02x}") from None
    line = sys.stdin.buffer.readline()
    return _decoded("stdin", line).rstrip("\r\n") if line else None


def _decoded(name: str, data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"{name} is not UTF-8: byte {error.start} is 0x{data[error.start]:02x}") from None
