"""The own pod through the Kubernetes API: the official client, a timeout on every call, one kind of exception."""

from __future__ import annotations

import datetime
import enum
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import urllib3
from kubernetes import client, watch
from kubernetes.client.exceptions import OpenApiException
from kubernetes.config import ConfigException
from kubernetes.config.incluster_config import InClusterConfigLoader

from weir.sidecar.metrics import SidecarMetrics
from weir.sidecar.settings import PodIdentity

TOKEN_FOLDER = Path("/var/run/secrets/kubernetes.io/serviceaccount")
APPLY = "application/apply-patch+yaml"


class FaultKind(enum.Enum):
    """What a fault asks for."""

    UNAUTHORIZED = "unauthorized"
    DENIED = "denied"
    CONFLICT = "conflict"
    GONE = "gone"
    MISSING = "missing"
    INVALID = "invalid"
    BUSY = "busy"
    UNREACHABLE = "unreachable"


KIND_OF_STATUS = {
    400: FaultKind.INVALID,
    401: FaultKind.UNAUTHORIZED,
    403: FaultKind.DENIED,
    404: FaultKind.MISSING,
    409: FaultKind.CONFLICT,
    410: FaultKind.GONE,
    422: FaultKind.INVALID,
    429: FaultKind.BUSY,
}


class ApiError(Exception):
    """A call did not do what it was asked to."""

    def __init__(self, kind: FaultKind, detail: str, retry_after_s: float = 0.0) -> None:
        super().__init__(detail)
        self.kind = kind
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds for a connection, for the next byte of an answer, and for one watch."""

    connect_s: float = 3.0
    read_s: float = 10.0
    watch_s: int = 300


@dataclass(frozen=True, slots=True)
class PodView:
    """What matters of the own pod."""

    resource_version: str
    owner_kinds: tuple[str, ...]
    deleting: bool

    @staticmethod
    def of(pod: Mapping[str, Any]) -> PodView:
        """From the API's JSON."""
        metadata = pod.get("metadata") or {}
        owners = metadata.get("ownerReferences") or []
        return PodView(
            resource_version=str(metadata.get("resourceVersion", "")),
            owner_kinds=tuple(str(owner.get("kind")) for owner in owners),
            deleting=metadata.get("deletionTimestamp") is not None,
        )


class PodApi:
    """Reads, watches and patches one pod. Raises ApiError, and nothing else, from every method."""

    def __init__(
        self,
        identity: PodIdentity,
        metrics: SidecarMetrics,
        timeouts: Timeouts | None = None,
        token_folder: Path = TOKEN_FOLDER,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._identity = identity
        self._metrics = metrics
        self._timeouts = timeouts or Timeouts()
        self._loader = InClusterConfigLoader(
            token_filename=str(token_folder / "token"),
            cert_filename=str(token_folder / "ca.crt"),
            environ=os.environ if env is None else env,
        )
        self._core: client.CoreV1Api | None = None

    def get(self) -> PodView:
        """The pod now."""
        return PodView.of(self._call("get", lambda core, pod: core.read_namespaced_pod(**pod, **self._raw())))

    def apply_annotation(self, key: str, value: str, manager: str) -> None:
        """Set one annotation by server-side apply, without force: CONFLICT when another manager owns it."""
        body = self._body({"annotations": {key: value}})
        self._call(
            "patch",
            lambda core, pod: core.patch_namespaced_pod(**pod, body=body, **self._apply(manager), **self._raw()),
        )

    def apply_condition(self, kind: str, is_true: bool, reason: str, manager: str) -> None:
        """Set one condition of the pod's status by server-side apply."""
        condition = {
            "type": kind,
            "status": "True" if is_true else "False",
            "reason": reason,
            "lastTransitionTime": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        body = self._body({}) | {"status": {"conditions": [condition]}}
        self._call(
            "patch",
            lambda core, pod: core.patch_namespaced_pod_status(**pod, body=body, **self._apply(manager), **self._raw()),
        )

    def watch(self, resource_version: str) -> Iterator[PodView]:
        """The pod at each change after `resource_version`, until the API server ends the watch. GONE: get it again."""
        limit_s = self._timeouts.watch_s
        try:
            events = watch.Watch(return_type="object").stream(
                self._connected().list_namespaced_pod,
                self._identity.namespace,
                field_selector=f"metadata.name={self._identity.name}",
                resource_version=resource_version,
                timeout_seconds=limit_s,
                # The server ends the watch; a server that hangs is given up on soon after.
                _request_timeout=(self._timeouts.connect_s, limit_s + self._timeouts.read_s),
            )
            for event in events:
                if event["type"] != "BOOKMARK":
                    yield PodView.of(event["raw_object"])
        except Exception as error:
            raise self._fault("watch", error) from error
        self._metrics.count_call("watch", "ok")

    def forget_token(self) -> None:
        """Read the token file before the next call, not a minute after the last time."""
        self._loader.token_expires_at = datetime.datetime.min

    def _call(self, verb: str, call: Callable[[client.CoreV1Api, dict[str, str]], Any]) -> dict[str, Any]:
        pod = {"name": self._identity.name, "namespace": self._identity.namespace}
        try:
            response = call(self._connected(), pod)
            body = response.data
            if not 200 <= response.status <= 299:
                raise _fault_of_status(response.status, body, response.headers)
            answer: dict[str, Any] = json.loads(body)
        except Exception as error:
            raise self._fault(verb, error) from error
        self._metrics.count_call(verb, "ok")
        return answer

    def _connected(self) -> client.CoreV1Api:
        if self._core is None:
            configuration = client.Configuration()
            self._loader.load_and_set(configuration)
            # Retries are the caller's, who paces them.
            configuration.retries = False
            self._core = client.CoreV1Api(client.ApiClient(configuration))
        return self._core

    def _raw(self) -> dict[str, Any]:
        # The raw answer: a pod of a newer API server must not fail in this client's models.
        return {"_preload_content": False, "_request_timeout": (self._timeouts.connect_s, self._timeouts.read_s)}

    def _body(self, metadata: dict[str, Any]) -> dict[str, Any]:
        # With the uid, an apply that finds another pod of this name, or none, fails and creates nothing.
        own = {"name": self._identity.name, "namespace": self._identity.namespace, "uid": self._identity.uid}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": own | metadata}

    @staticmethod
    def _apply(manager: str) -> dict[str, Any]:
        return {"field_manager": manager, "force": False, "_content_type": APPLY}

    def _fault(self, verb: str, error: Exception) -> ApiError:
        fault = error if isinstance(error, ApiError) else _fault_of_exception(error)
        if fault.kind is FaultKind.UNREACHABLE:
            # The next call begins afresh: with new connections, and with the CA and the token that are there then.
            self._core = None
        self._metrics.count_call(verb, fault.kind.value)
        return fault


def _fault_of_status(status: int, body: bytes, headers: Mapping[str, str]) -> ApiError:
    kind = KIND_OF_STATUS.get(status, FaultKind.BUSY if status >= 500 else FaultKind.INVALID)
    try:
        message = str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        message = body[:200].decode(errors="replace")
    return ApiError(kind, f"{status}: {message}", _seconds(headers.get("Retry-After")))


def _fault_of_exception(error: Exception) -> ApiError:
    match error:
        case client.ApiException(status=int(status)) if status:
            return _fault_of_status(status, (error.body or error.reason or "").encode(), error.headers or {})
        case urllib3.exceptions.HTTPError() | OSError() | OpenApiException() | ConfigException():
            return ApiError(FaultKind.UNREACHABLE, f"{type(error).__name__}: {error}")
        case _:
            # Whatever else an answer can do to a client: it counts as no answer.
            return ApiError(FaultKind.UNREACHABLE, f"unusable answer: {type(error).__name__}: {error}")


def _seconds(text: str | None) -> float:
    try:
        return min(300.0, max(0.0, float(text or 0)))
    except ValueError:
        return 0.0
