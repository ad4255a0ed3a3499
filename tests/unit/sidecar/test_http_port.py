"""The port of metrics and health."""

from __future__ import annotations

import socket
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from weir.sidecar.http_port import HttpPort
from weir.sidecar.metrics import SidecarMetrics


@pytest.fixture
def port() -> Iterator[HttpPort]:
    made = HttpPort("::", 0, SidecarMetrics().registry, lambda: True)
    made.start()
    yield made
    made.stop()


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_health_and_metrics_answer_on_both_families_and_nothing_else_does(port: HttpPort, host: str) -> None:
    base = f"http://{host}:{port.port}"
    assert b"weir_sidecar_engine_up 0.0" in urllib.request.urlopen(f"{base}/metrics").read()
    assert urllib.request.urlopen(f"{base}/healthz").read() == b"ok\n"
    for path in ("/", "/prestop", "/drain"):
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(base + path)
    with pytest.raises(urllib.error.HTTPError, match="501"):
        urllib.request.urlopen(base + "/drain", data=b"")


def test_a_main_loop_that_stands_still_is_not_healthy() -> None:
    stuck = HttpPort("127.0.0.1", 0, SidecarMetrics().registry, lambda: False)
    stuck.start()
    with pytest.raises(urllib.error.HTTPError, match="503"):
        urllib.request.urlopen(f"http://127.0.0.1:{stuck.port}/healthz")
    stuck.stop()


def test_a_port_that_is_taken_is_an_error(port: HttpPort) -> None:
    with pytest.raises(OSError, match="in use"):
        HttpPort("::", port.port, SidecarMetrics().registry, lambda: True)


def test_a_stopped_port_is_free_again(port: HttpPort) -> None:
    other = HttpPort("127.0.0.1", 0, SidecarMetrics().registry, lambda: True)
    other.start()
    other.stop()
    with socket.create_server(("127.0.0.1", other.port)):
        pass
