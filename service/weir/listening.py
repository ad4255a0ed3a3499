"""Where HTTP ports listen."""

from __future__ import annotations

import socket

# As gRPC reads them: either means every address of the machine, of both families.
WILDCARDS = ("", "::", "0.0.0.0")


def listening_socket(host: str, port: int) -> socket.socket:
    """A TCP socket that listens at `host`, a name or an address; a wildcard is every address, of IPv6 and of IPv4.

    Raises OSError when the port is taken, or the host is not this machine's.
    """
    if host.strip("[]") in WILDCARDS:
        # A kernel may have been started without IPv6.
        if not socket.has_dualstack_ipv6():
            return socket.create_server(("", port))
        return socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True)
    (family, _, _, _, address), *_ = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
    return socket.create_server((str(address[0]), port), family=family)
