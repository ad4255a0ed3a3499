"""When certificates are valid: the two dates of each in a PEM file, read from their DER (RFC 5280, section 4.1)."""

from __future__ import annotations

import re
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime

_PEM = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_VERSION, _UTC_TIME, _GENERALIZED_TIME = 0xA0, 0x17, 0x18


@dataclass(frozen=True, slots=True)
class Validity:
    """From when until when a certificate is valid."""

    begins: datetime
    ends: datetime


def validities(pem: bytes) -> list[Validity]:
    """Those of the certificates in `pem`, in its order. Raises ValueError when there is none, or one is damaged."""
    found = [_dates(ssl.PEM_cert_to_DER_cert(block)) for block in _PEM.findall(pem.decode("ascii", errors="replace"))]
    if not found:
        raise ValueError("no certificate in PEM form")
    return found


def _dates(der: bytes) -> Validity:
    try:
        fields = _parts(_parts(_parts(der)[0][1])[0][1])
        # Version, which may be left out; serial number, signature algorithm, issuer; validity.
        _, body = fields[4 if fields[0][0] == _VERSION else 3]
        [begins, ends] = [_time(tag, text) for tag, text in _parts(body)]
    except (IndexError, ValueError) as error:
        raise ValueError(f"a certificate's dates cannot be read: {error}") from None
    return Validity(begins, ends)


def _parts(der: bytes) -> list[tuple[int, bytes]]:
    """Tag and content of each element in a row."""
    found, at = [], 0
    while at < len(der):
        tag, length, at = der[at], der[at + 1], at + 2
        if length & 0x80:
            size = length & 0x7F
            length, at = int.from_bytes(der[at : at + size], "big"), at + size
        found.append((tag, der[at : at + length]))
        at += length
    return found


def _time(tag: int, content: bytes) -> datetime:
    text = content.decode("ascii")
    if tag == _UTC_TIME:  # two digits of the year, up to 2049
        text = ("20" if int(text[:2]) < 50 else "19") + text
    elif tag != _GENERALIZED_TIME:
        raise ValueError(f"tag {tag:#x} is no time")
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)
