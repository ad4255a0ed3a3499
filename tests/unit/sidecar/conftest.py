"""An API server and an engine for each test that asks for them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from weir.sidecar.connection import ClusterConnection
from weir.sidecar.kube import PodApi
from weir.sidecar.metrics import SidecarMetrics

from tests.unit.sidecar.api_server import IDENTITY, ApiServer
from tests.unit.sidecar.engine_server import FakeEngine, serving
from tests.unit.sidecar.https_front import running

READ_TIMEOUT_S = 0.5


@pytest.fixture
def api_server(tmp_path: Path) -> Iterator[ApiServer]:
    folder = tmp_path / "serviceaccount"
    folder.mkdir()
    with running(folder) as server:
        yield server


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[FakeEngine]:
    with serving(tmp_path) as fake:
        yield fake


@pytest.fixture
def metrics() -> SidecarMetrics:
    return SidecarMetrics()


@pytest.fixture
def pod_api(api_server: ApiServer, metrics: SidecarMetrics) -> PodApi:
    return connected(api_server, metrics)


def connected(server: ApiServer, metrics: SidecarMetrics, through_status: bool = True) -> PodApi:
    """The own pod, over real sockets."""
    connection = ClusterConnection(server.folder, server.env)
    return PodApi(IDENTITY, connection, metrics, through_status, READ_TIMEOUT_S)


def eventually(condition: Callable[[], bool], limit_s: float = 10.0) -> None:
    """Wait until `condition` holds. Raises AssertionError when it does not in time."""
    ends_at = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < ends_at, "it did not happen"
        time.sleep(0.01)


def value(metrics: SidecarMetrics, name: str, **labels: str) -> float:
    """A sample of the sidecar's registry."""
    found = metrics.registry.get_sample_value(name, labels)
    assert found is not None, f"{name}{labels} is not exported"
    return found
