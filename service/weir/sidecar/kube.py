"""The own pod through the Kubernetes API: two kinds of requests, and one kind of exception."""

from __future__ import annotations

import contextlib
import datetime
import enum
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import urllib3
from kubernetes.config.config_exception import ConfigException

from weir.sidecar.connection import Answer, Connection, Request
from weir.sidecar.metrics import SidecarMetrics
from weir.sidecar.settings import PodIdentity

APPLY = "application/apply-patch+yaml"
READ_TIMEOUT_S = 10.0
# However long the server asks to be left alone.
LONGEST_RETRY_AFTER_S = 300.0


class FaultKind(enum.Enum):
    """What a fault asks for."""

    UNAUTHORIZED = "unauthorized"
    DENIED = "denied"
    CONFLICT = "conflict"
    GONE = "gone"
    MISSING = "missing"
    INVALID = "invalid"
    BUSY = "busy"
    FAILING = "failing"
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
class PodView:
    """What matters of the own pod: its annotations, and the status of its conditions by their type."""

    owner_kinds: tuple[str, ...]
    deleting: bool
    annotations: Mapping[str, str]
    conditions: Mapping[str, str]

    @staticmethod
    def of(pod: Mapping[str, Any], deleted: bool = False) -> PodView:
        """From the API's JSON."""
        metadata = pod.get("metadata") or {}
        conditions = (pod.get("status") or {}).get("conditions") or []
        return PodView(
            owner_kinds=tuple(str(owner.get("kind")) for owner in metadata.get("ownerReferences") or []),
            deleting=deleted or metadata.get("deletionTimestamp") is not None,
            annotations=dict(metadata.get("annotations") or {}),
            conditions={str(c.get("type")): str(c.get("status")) for c in conditions},
        )


class PodApi:
    """Watches and patches one pod. Raises ApiError, and nothing else, from every method.

    All patches go to one resource, so that a Role needs to allow no more: the pod, or its status where conditions are
    kept. The status takes annotations too, and through it nobody can change what a pod runs.
    """

    def __init__(
        self,
        identity: PodIdentity,
        connection: Connection,
        metrics: SidecarMetrics,
        through_status: bool,
        read_timeout_s: float = READ_TIMEOUT_S,
    ) -> None:
        self._identity = identity
        self._connection = connection
        self._metrics = metrics
        self._read_timeout_s = read_timeout_s
        self._pods = f"/api/v1/namespaces/{quote(identity.namespace, safe='')}/pods"
        self._patched = f"{self._pods}/{quote(identity.name, safe='')}" + ("/status" if through_status else "")

    def apply_annotation(self, key: str, value: str, manager: str) -> None:
        """Set one annotation by server-side apply, without force: CONFLICT when another manager owns it."""
        self._apply({"annotations": {key: value}}, {}, manager)

    def apply_condition(self, kind: str, is_true: bool, reason: str, manager: str) -> None:
        """Set one condition of the pod's status by server-side apply."""
        condition = {
            "type": kind,
            "status": "True" if is_true else "False",
            "reason": reason,
            "lastTransitionTime": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        self._apply({}, {"status": {"conditions": [condition]}}, manager)

    def watch(self, limit_s: int) -> Iterator[PodView | None]:
        """The pod as it is, and at each change, for `limit_s` at most; None is a sign of life.

        From version "0", whatever state the server has: it comes first, so nothing has to be read before. The pod's
        own version would be the wrong one to begin at: a pod that rests keeps it while the server forgets it.
        """
        query = {
            "watch": "true",
            "fieldSelector": f"metadata.name={self._identity.name}",
            "resourceVersion": "0",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(limit_s),
        }
        try:
            # The server ends the watch; one that hangs is given up on soon after.
            request = Request("GET", self._pods, query, limit_s + self._read_timeout_s)
            with contextlib.closing(self._connection.send(request)) as answer:
                _check(answer)
                for line in answer:
                    yield self._view_of(json.loads(line))
        except Exception as error:
            raise self._fault("watch", error) from error
        self._metrics.count_call("watch", "ok")

    def forget_token(self) -> None:
        """Read the token again before the next call."""
        self._connection.forget_token()

    def _apply(self, metadata: dict[str, Any], rest: dict[str, Any], manager: str) -> None:
        # With the uid, an apply that finds another pod of this name, or none, fails and creates nothing.
        own = {"name": self._identity.name, "namespace": self._identity.namespace, "uid": self._identity.uid}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": own | metadata} | rest
        query = {"fieldManager": manager, "force": "false"}
        request = Request("PATCH", self._patched, query, self._read_timeout_s, json.dumps(body).encode(), APPLY)
        try:
            with contextlib.closing(self._connection.send(request)) as answer:
                _check(answer)
                json.loads(answer.data)
        except Exception as error:
            raise self._fault("patch", error) from error
        self._metrics.count_call("patch", "ok")

    def _view_of(self, event: dict[str, Any]) -> PodView | None:
        kind, thing = event["type"], event["object"]
        if kind == "ERROR":
            raise _fault_of(int(thing.get("code", 500)), str(thing.get("message")), {})
        # A later pod of the same name is another pod.
        is_own = kind != "BOOKMARK" and thing["metadata"].get("uid") == self._identity.uid
        return PodView.of(thing, kind == "DELETED") if is_own else None

    def _fault(self, verb: str, error: Exception) -> ApiError:
        fault = error if isinstance(error, ApiError) else _fault_of_exception(error)
        if fault.kind is FaultKind.UNREACHABLE:
            self._connection.reset()
        self._metrics.count_call(verb, fault.kind.value)
        return fault


def _check(answer: Answer) -> None:
    if 200 <= answer.status <= 299:
        return
    body = answer.data
    try:
        message = str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        message = body[:200].decode(errors="replace")
    raise _fault_of(answer.status, message, answer.headers)


def _fault_of(status: int, message: str, headers: Mapping[str, str]) -> ApiError:
    kind = KIND_OF_STATUS.get(status, FaultKind.FAILING if status >= 500 else FaultKind.INVALID)
    return ApiError(kind, f"{status}: {message}", _seconds(headers.get("Retry-After")))


def _fault_of_exception(error: Exception) -> ApiError:
    match error:
        case urllib3.exceptions.HTTPError() | OSError() | ConfigException():
            return ApiError(FaultKind.UNREACHABLE, f"{type(error).__name__}: {error}")
        case _:
            # Whatever else an answer can do to a client: it counts as no answer.
            return ApiError(FaultKind.UNREACHABLE, f"unusable answer: {type(error).__name__}: {error}")


def _seconds(text: str | None) -> float:
    try:
        return min(LONGEST_RETRY_AFTER_S, max(0.0, float(text or 0)))
    except ValueError:
        return 0.0
