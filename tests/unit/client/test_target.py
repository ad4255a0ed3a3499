"""What a target means: host and port, sockets, names of gRPC's own, and what is refused with a sentence."""

from __future__ import annotations

import pytest
from weir.client import InvalidRequestError
from weir.client.channel import channel_options
from weir.client.target import Target


@pytest.mark.parametrize(
    ("text", "address", "host"),
    [
        ("localhost", "localhost:50051", "localhost"),
        ("weir.default.svc", "weir.default.svc:50051", "weir.default.svc"),
        ("10.1.2.3:7000", "10.1.2.3:7000", "10.1.2.3"),
        ("::1", "[::1]:50051", "::1"),
        ("[::1]", "[::1]:50051", "::1"),
        ("[fe80::1%eth0]:7000", "[fe80::1%eth0]:7000", "fe80::1%eth0"),
        ("dns:weir", "dns:weir:50051", "weir"),
        ("dns:///weir", "dns:///weir:50051", "weir"),
        ("dns://8.8.8.8/weir:7000", "dns://8.8.8.8/weir:7000", "weir"),
    ],
)
def test_a_host_without_a_port_gets_weirs_own_and_never_443(text: str, address: str, host: str) -> None:
    target = Target.parse(text)
    assert (target.address, target.host) == (address, host)


@pytest.mark.parametrize(
    "text", ["unix:/run/weir.sock", "unix-abstract:weir", "xds:///weir", "ipv4:10.0.0.1:1,10.0.0.2:1"]
)
def test_what_grpc_has_its_own_grammar_for_is_left_to_grpc(text: str) -> None:
    assert Target.parse(text).address == text
    assert Target.parse(text).host is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "HOST:PORT"),
        ("a b", "HOST:PORT"),
        ("a\n:1", "HOST:PORT"),
        (":50051", "HOST:PORT"),
        ("dns:///", "HOST:PORT"),
        ("localhost:", "1 to 65535"),
        ("localhost:http", "1 to 65535"),
        ("localhost:0", "1 to 65535"),
        ("localhost:65536", "1 to 65535"),
        ("localhost:" + "9" * 5000, "1 to 65535"),
        ("http://localhost:50051/v1", "no URL; write localhost:50051;"),
        ("https://weir", "no URL; write weir and credentials for TLS"),
        ("grpc://weir:1", "no URL; write weir:1;"),
    ],
)
def test_a_target_that_cannot_be_one_is_refused_with_what_to_write(text: str, said: str) -> None:
    with pytest.raises(InvalidRequestError, match=said) as caught:
        Target.parse(text)
    assert [violation.field for violation in caught.value.violations] == ["target"]


@pytest.mark.parametrize(
    "text", ["localhost", "LOCALHOST:1", "a.localhost", "127.0.0.1:1", "127.9.9.9", "::1", "[::1]:1"]
)
def test_loopback_is_dialled_without_a_proxy(text: str) -> None:
    assert dict(channel_options(1, 5.0, Target.parse(text)))["grpc.enable_http_proxy"] == 0


@pytest.mark.parametrize("text", ["unix:/run/weir.sock", "dns:///localhost:1", "ipv4:127.0.0.1:1", "0.0.0.0:1"])
def test_so_is_every_other_way_to_write_this_machine(text: str) -> None:
    assert Target.parse(text).local


@pytest.mark.parametrize("text", ["weir", "10.0.0.1:1", "localhost.example.com", "dns:///weir", "xds:///weir"])
def test_other_machines_are_reached_as_the_environment_says(text: str) -> None:
    assert "grpc.enable_http_proxy" not in dict(channel_options(1, 5.0, Target.parse(text)))
