"""HTTP ports listen where gRPC's would: a wildcard is every address, of both families."""

from __future__ import annotations

import socket

import pytest
from weir.listening import listening_socket


def answers(address: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as client:
        client.settimeout(1.0)
        return client.connect_ex((address, port)) == 0


@pytest.mark.parametrize("host", ["::", "[::]", "0.0.0.0", ""])
def test_a_wildcard_listens_on_both_families_with_one_port(host: str) -> None:
    with listening_socket(host, 0) as listener:
        port = listener.getsockname()[1]
        assert answers("127.0.0.1", port)
        assert answers("::1", port)


@pytest.mark.parametrize(("host", "other"), [("127.0.0.1", "::1"), ("::1", "127.0.0.1"), ("[::1]", "127.0.0.1")])
def test_an_address_listens_on_that_address_only(host: str, other: str) -> None:
    with listening_socket(host, 0) as listener:
        port = listener.getsockname()[1]
        assert answers(host.strip("[]"), port)
        assert not answers(other, port)


def test_a_name_is_looked_up() -> None:
    with listening_socket("localhost", 0) as listener:
        address, port, *_ = listener.getsockname()
        assert address in ("127.0.0.1", "::1")
        assert answers(address, port)


@pytest.mark.parametrize("host", ["::", "0.0.0.0"])
def test_a_kernel_without_ipv6_gets_ipv4(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    with listening_socket(host, 0) as listener:
        assert listener.family == socket.AF_INET
        assert answers("127.0.0.1", listener.getsockname()[1])


def test_a_port_that_is_taken_is_an_error() -> None:
    with listening_socket("::", 0) as listener, pytest.raises(OSError, match="in use"):
        listening_socket("::", listener.getsockname()[1])


def test_an_address_of_another_machine_is_an_error() -> None:
    with pytest.raises(OSError, match="assign"):
        listening_socket("192.0.2.1", 0)
