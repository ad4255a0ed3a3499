"""Where a client connects to: HOST, HOST:PORT, unix:PATH, or any name that gRPC resolves."""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import ip_address

from weir.client.errors import InvalidRequestError, Violation, WrongTypeError

DEFAULT_PORT = 50051
_EXAMPLE = "write HOST:PORT, as in localhost:50051"
_URL = re.compile(r"(https?|grpcs?|tcp)://([^/]*)", re.IGNORECASE)
# Names that gRPC has its own grammar for; everything else is a host.
_SCHEMES = ("dns", "ipv4", "ipv6", "unix", "unix-abstract", "vsock", "xds", "google-c2p", "passthrough")


@dataclass(frozen=True, slots=True)
class Target:
    """An address for gRPC. `host` is None where there is no single one; `local`: no network lies between."""

    address: str
    host: str | None
    local: bool

    @classmethod
    def parse(cls, text: str) -> Target:
        """Port 50051 where none is given (gRPC would take 443). Raises InvalidRequestError."""
        if not isinstance(text, str):
            raise WrongTypeError.of([Violation("target", f"{_EXAMPLE}; got {text!r}")])
        if not text or not text.isprintable() or " " in text:
            raise _wrong(text, _EXAMPLE)
        url = _URL.match(text)
        if url is not None:
            tls = " and credentials for TLS" if url[1].lower() in ("https", "grpcs") else ""
            raise _wrong(text, f"a target is no URL; write {url[2] or 'HOST:PORT'}{tls}")
        scheme, colon, rest = text.partition(":")
        if not colon or scheme not in _SCHEMES:
            return _of_host(text, "", text)
        if scheme in ("unix", "unix-abstract", "vsock"):
            return cls(text, None, local=True)
        if scheme == "dns":
            # dns:HOST, dns:///HOST or dns://AUTHORITY/HOST
            prefix, slash, name = text.rpartition("/") if rest.startswith("/") else (scheme, ":", rest)
            return _of_host(name, prefix + slash, text)
        first = rest.partition(",")[0]
        return cls(text, None, local=scheme in ("ipv4", "ipv6") and _is_local(_split(first)[0]))


def _of_host(name: str, prefix: str, text: str) -> Target:
    host, port = _split(name)
    if not host:
        raise _wrong(text, _EXAMPLE)
    if port is None:
        port = str(DEFAULT_PORT)
    if not (port.isascii() and port.isdigit() and 0 < int(port[:6]) < 65536):
        raise _wrong(text, "the port must be 1 to 65535")
    bracketed = f"[{host}]" if ":" in host else host
    return Target(f"{prefix}{bracketed}:{port}", host, _is_local(host))


def _split(name: str) -> tuple[str, str | None]:
    """Host and port of `host`, `host:port`, `[v6]`, `[v6]:port` or a bare v6 address."""
    if name.startswith("["):
        host, _, rest = name[1:].partition("]")
        return host, rest[1:] if rest.startswith(":") else None
    if name.count(":") > 1:
        return name, None
    host, colon, port = name.partition(":")
    return host, port if colon else None


def _is_local(host: str) -> bool:
    if host.lower() == "localhost" or host.lower().endswith(".localhost"):
        return True
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified


def _wrong(text: str, what: str) -> InvalidRequestError:
    return InvalidRequestError.of([Violation("target", f"{what}; got {text!r}")])
