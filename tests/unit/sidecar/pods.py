"""One pod in the API server: how it may change, and by which requests."""

from __future__ import annotations

import copy
import re
from typing import Any

from tests.unit.sidecar import ownership
from tests.unit.sidecar.ownership import ConflictError, Manager, Owned, Tree

APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
# Per resource: what a write cannot change through it, without a word.
RESET = {"": (("status",),), "status": (("spec",), ("metadata", "deletionTimestamp"), ("metadata", "ownerReferences"))}
DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
_NAME = re.compile(r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
_STATUSES = ("True", "False", "Unknown")
_REASONS = {400: "BadRequest", 401: "Unauthorized", 403: "Forbidden", 404: "NotFound", 409: "Conflict", 410: "Expired",
            415: "UnsupportedMediaType", 422: "Invalid", 429: "TooManyRequests"}  # fmt: skip


class RefusedError(Exception):
    """The request fails."""

    def __init__(self, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers or {}

    def body(self) -> Tree:
        """The Status object."""
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "status": "Failure",
            "message": str(self),
            "reason": _REASONS.get(self.status, "InternalError"),
            "code": self.status,
        }


class StoredPod:
    """A pod, its version, and the owners of its fields."""

    def __init__(self, name: str, namespace: str, uid: str, version: int) -> None:
        self.owned: Owned = {}
        self.tree: Tree = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name,
                "namespace": namespace,
                "uid": uid,
                "resourceVersion": str(version),
                "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "weir", "uid": "rs-1"}],
            },
            "spec": {"nodeName": "node-1", "containers": [{"name": "weir", "image": "weir:1"}]},
            "status": {"phase": "Running", "podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]},
        }

    def shown(self) -> Tree:
        """As a client gets it."""
        tree = copy.deepcopy(self.tree)
        tree["metadata"]["managedFields"] = ownership.managed_fields(self.owned)
        return tree

    def write(self, after: Tree, owned: Owned, version: int) -> bool:
        """Keep `after` if it differs, under a new version. Whether it did."""
        if after == self.tree:
            self.owned = owned
            return False
        self.tree, self.owned = after, owned
        self.tree["metadata"]["resourceVersion"] = str(version)
        return True

    def patched(self, body: Tree, content_type: str, query: dict[str, str], agent: str, sub: str) -> tuple[Tree, Owned]:
        """What a patch makes of it. Raises RefusedError."""
        manager = query.get("fieldManager", "")
        self._check_uid(body)
        if content_type == APPLY:
            if not manager:
                raise RefusedError(422, "PatchOptions is invalid: fieldManager: Required value: for apply patch")
            after, owned = self._applied(body, Manager(manager, "Apply", sub), query.get("force") == "true", sub)
        elif content_type in (MERGE, STRATEGIC):
            if "force" in query:
                raise RefusedError(422, "PatchOptions is invalid: force: Forbidden: may not be specified for non-apply")
            after = _merged(self.tree, body, keyed=content_type == STRATEGIC)
            for path in RESET[sub]:
                _copy(self.tree, after, path)
            by = Manager(manager or agent.partition("/")[0], "Update", sub)
            owned = ownership.update(self.tree, after, self.owned, by)
        else:
            raise RefusedError(415, f"the body of the request was in an unknown format: {content_type}")
        _validate(self.tree, after)
        return after, owned

    def _applied(self, body: Tree, manager: Manager, force: bool, sub: str) -> tuple[Tree, Owned]:
        if (body.get("apiVersion"), body.get("kind")) != ("v1", "Pod"):
            raise RefusedError(400, "apiVersion and kind must be those of the object")
        if "managedFields" in body["metadata"]:
            raise RefusedError(400, "metadata.managedFields must be nil")
        wrong = {k for k in ("name", "namespace") if body["metadata"].get(k) not in (None, self.tree["metadata"][k])}
        if wrong:
            raise RefusedError(400, f"{wrong} of the object are not those of the URL")
        config = copy.deepcopy(body)
        for path in RESET[sub]:
            _copy({}, config, path)
        _check_types(config)
        try:
            return ownership.apply(self.tree, self.owned, config, manager, force)
        except ConflictError as error:
            raise RefusedError(409, str(error)) from None

    def _check_uid(self, body: Tree) -> None:
        found, wanted = self.tree["metadata"]["uid"], body.get("metadata", {}).get("uid")
        if wanted not in (None, found):
            raise RefusedError(409, f"Precondition failed: UID in precondition: {wanted}, UID in object meta: {found}")


def _merged(before: Tree, patch: Tree, keyed: bool, at: ownership.Path = ()) -> Tree:
    after = copy.deepcopy(before)
    for name, value in patch.items():
        path = (*at, name)
        if value is None:
            after.pop(name, None)
        elif keyed and path in ownership.LIST_KEYS:
            key = ownership.LIST_KEYS[path]
            items = {item[key]: item for item in after.get(name, [])}
            for item in value:
                items[item[key]] = _merged(items.get(item[key], {}), item, keyed, (*path, "[]"))
            after[name] = list(items.values())
        elif isinstance(value, dict):
            after[name] = _merged(after.get(name) or {}, value, keyed, path)
        else:
            after[name] = copy.deepcopy(value)
    return after


def _copy(source: Tree, target: Tree, path: ownership.Path) -> None:
    """What is at `path` in `source` is also in `target`; what is not, is not."""
    *way, last = path
    for step in way:
        source, target = source.get(step, {}), target.setdefault(step, {})
    if last in source:
        target[last] = copy.deepcopy(source[last])
    else:
        target.pop(last, None)


def _check_types(tree: Tree) -> None:
    for name in ("annotations", "labels"):
        for key, value in (tree.get("metadata", {}).get(name) or {}).items():
            if not isinstance(value, str):
                raise RefusedError(400, f"metadata.{name}.{key}: cannot be decoded into a string")
    for condition in tree.get("status", {}).get("conditions") or []:
        if not _TIME.fullmatch(condition.get("lastTransitionTime", "2026-01-01T00:00:00Z")):
            raise RefusedError(400, f"lastTransitionTime: {condition['lastTransitionTime']} is no RFC 3339 time")


def _validate(before: Tree, after: Tree) -> None:
    _check_types(after)
    for key in after["metadata"].get("annotations") or {}:
        if not _NAME.fullmatch(key):
            raise RefusedError(422, f"metadata.annotations: {key} is no qualified name")
    cost = (after["metadata"].get("annotations") or {}).get(DELETION_COST, "0")
    if not re.fullmatch(r"0|-?[1-9]\d*", cost) or not -(2**31) <= int(cost) < 2**31:
        raise RefusedError(422, f"metadata.annotations[{DELETION_COST}]: must be a 32bit integer: {cost}")
    for condition in after["status"].get("conditions") or []:
        if not _NAME.fullmatch(condition.get("type", "")) or condition.get("status") not in _STATUSES:
            raise RefusedError(422, f"status.conditions: {condition} is no condition")
    if _but_images(before["spec"]) != _but_images(after["spec"]):
        raise RefusedError(422, "spec: Forbidden: pod updates may not change fields other than images")
    for name in ("name", "namespace", "uid"):
        if before["metadata"][name] != after["metadata"][name]:
            raise RefusedError(422, f"metadata.{name}: field is immutable")


def _but_images(spec: Tree) -> Any:
    free = {"activeDeadlineSeconds", "tolerations"}
    containers = [{k: v for k, v in c.items() if k != "image"} for c in spec.get("containers", [])]
    return {k: v for k, v in spec.items() if k not in free} | {"containers": containers}
