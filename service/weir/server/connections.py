"""Closing a client's connection. gRPC for Python has no call for that, so it is done to the socket, as by the peer."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Collection
from pathlib import Path
from urllib.parse import unquote

_OPEN_FILES = Path("/proc/self/fd")
_MAPPED = "::ffff:"  # an IPv4 peer of a socket that takes both kinds

Address = tuple[str, int]


def close_connections(peers: Collection[str]) -> int:
    """Shut down the TCP connections with these peers, named as gRPC names them (`ipv4:HOST:PORT`); how many were."""
    wanted = {address for peer in peers if (address := _address(peer)) is not None}
    if not wanted:
        return 0
    return sum(_shut_down(int(entry.name), wanted) for entry in _OPEN_FILES.iterdir())


def _address(peer: str) -> Address | None:
    match = re.fullmatch(r"ipv[46]:\[?([^\]]+?)\]?:(\d+)", unquote(peer))
    return None if match is None else (match[1], int(match[2]))


def _shut_down(descriptor: int, wanted: Collection[Address]) -> bool:
    connection = _socket(descriptor)
    if connection is None:
        return False
    with connection:
        try:
            host, port, *_ = connection.getpeername()
            if (host.removeprefix(_MAPPED), port) not in wanted:
                return False
            connection.shutdown(socket.SHUT_RDWR)
        except (OSError, ValueError):
            return False  # a socket that listens, a unix socket, or one that is closed already
    return True


def _socket(descriptor: int) -> socket.socket | None:
    """A copy, which stays the same connection when gRPC closes its own and the number is used again."""
    try:
        copy = os.dup(descriptor)
    except OSError:
        return None  # closed since it was listed
    try:
        return socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        return None  # a file or a pipe
