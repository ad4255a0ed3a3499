"""A cluster for one test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chart.api_server import ApiServer
from tests.chart.cluster import Cluster
from tests.chart.rendering import HELM_MAJORS


@pytest.fixture
def api() -> Iterator[ApiServer]:
    """An API server with the namespace `llm`, until the end of the test."""
    server = ApiServer()
    yield server
    server.close()


@pytest.fixture(params=HELM_MAJORS, ids=lambda major: f"helm-{major}")
def cluster(api: ApiServer, tmp_path: Path, request: pytest.FixtureRequest) -> Cluster:
    """The same with one major of Helm."""
    return Cluster(api, request.param, tmp_path)
