"""The way from inside a pod to its API server: address, certificate and token, by the core of the official client.

Its generated half, a class for every API and every model, is left alone: importing what one call of it needs takes more
time and memory than all of the sidecar.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast
from urllib.parse import urlencode

import urllib3
from kubernetes.client.configuration import Configuration
from kubernetes.client.rest import RESTClientObject
from kubernetes.config.incluster_config import InClusterConfigLoader

TOKEN_FOLDER = Path("/var/run/secrets/kubernetes.io/serviceaccount")
CONNECT_TIMEOUT_S = 3.0


@dataclass(frozen=True, slots=True)
class Request:
    """One call. `read_timeout_s`: for the next byte of the answer."""

    method: str
    path: str
    query: Mapping[str, str]
    read_timeout_s: float
    body: bytes | None = None
    content_type: str | None = None

    @property
    def target(self) -> str:
        """Path and query."""
        return f"{self.path}?{urlencode(self.query)}" if self.query else self.path


class Answer(Protocol):
    """What came back, its body still on the way."""

    @property
    def status(self) -> int:
        """HTTP's status."""

    @property
    def headers(self) -> Mapping[str, str]:
        """Headers, their names in any case."""

    @property
    def data(self) -> bytes:
        """All of the body."""

    def __iter__(self) -> Iterator[bytes]:
        """The body line by line, as lines come."""

    def close(self) -> None:
        """Done with it, read to its end or not."""


class Connection(Protocol):
    """Sends requests with the pod's credentials."""

    def send(self, request: Request) -> Answer:
        """The answer, whatever its status. Raises what HTTP, TLS, sockets and missing files raise."""

    def forget_token(self) -> None:
        """Read the token again before the next request."""

    def reset(self) -> None:
        """Begin afresh: with new connections, and with the CA and the token that are there then."""


class ClusterConnection:
    """The connection of a process in a pod."""

    def __init__(self, token_folder: Path = TOKEN_FOLDER, env: Mapping[str, str] | None = None) -> None:
        self._loader = InClusterConfigLoader(
            token_filename=str(token_folder / "token"),
            cert_filename=str(token_folder / "ca.crt"),
            environ=os.environ if env is None else env,
        )
        self._configuration: Configuration | None = None
        self._pool: urllib3.PoolManager | None = None

    def send(self, request: Request) -> Answer:
        """The answer. Raises urllib3's HTTPError, OSError, and ConfigException outside of a cluster."""
        pool, configuration = self._connected()
        # The client's own hook: it reads the token file once a minute.
        configuration.refresh_api_key_hook(configuration)
        headers = {"Accept": "application/json", "Authorization": self._loader.token, "User-Agent": "weir-sidecar"}
        if request.content_type is not None:
            headers["Content-Type"] = request.content_type
        answer = pool.request(
            request.method,
            configuration.host + request.target,
            headers=headers,
            body=request.body,
            timeout=urllib3.Timeout(connect=CONNECT_TIMEOUT_S, read=request.read_timeout_s),
            # Retries are the caller's, who paces them.
            retries=False,
            preload_content=False,
        )
        return cast(Answer, answer)

    def forget_token(self) -> None:
        """Read the token file before the next call, not a minute after the last time."""
        self._loader.token_expires_at = datetime.datetime.min

    def reset(self) -> None:
        """The next call begins afresh."""
        self._pool = None

    def _connected(self) -> tuple[urllib3.PoolManager, Configuration]:
        # Two threads may both find nothing here and both connect; the later one's connection is kept.
        pool, configuration = self._pool, self._configuration
        if pool is None or configuration is None:
            configuration = Configuration()
            self._loader.load_and_set(configuration)
            # A watch whose peer went away without a word is noticed by the kernel.
            configuration.keep_alive = True
            pool = RESTClientObject(configuration).pool_manager
            self._pool, self._configuration = pool, configuration
        return pool, configuration
