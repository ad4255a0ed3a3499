"""The lines of a token file: a bearer token each, and for which tenant it speaks."""

from __future__ import annotations

from dataclasses import dataclass

# A line that names a tenant begins with this; the token is what follows the name, to the end of the line.
_TENANT = "tenant="


@dataclass(frozen=True, slots=True)
class TokenLine:
    """One token. number: its line, from 1; tenant: the name before it, None: there is none."""

    number: int
    token: str
    tenant: str | None = None


def token_lines(text: str) -> list[TokenLine]:
    """The tokens of a file, one a line: `TOKEN` or `tenant=NAME TOKEN`.

    Blank lines and lines that begin with `#` do not count. Raises ValueError, with the line's number and none of its
    text, for a tenant without a token.
    """
    found = []
    for number, line in enumerate(map(str.strip, text.splitlines()), 1):
        if not line or line.startswith("#"):
            continue
        if not line.startswith(_TENANT):
            found.append(TokenLine(number, line))
            continue
        parts = line.removeprefix(_TENANT).split(maxsplit=1)
        if len(parts) != 2 or line[len(_TENANT)].isspace():
            raise ValueError(f"line {number} must be tenant=NAME TOKEN, with a space between")
        found.append(TokenLine(number, parts[1], parts[0]))
    return found
