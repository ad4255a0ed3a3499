"""An API server for Helm, as strict as a real one in who owns which field, in immutable fields and in rights.

It keeps objects in memory, merges strategic patches (Helm 3) and applies (Helm 4), records managedFields, fills in the
defaults that matter here, and runs a Deployment controller that is no more than the pods it would keep or end.
"""

from __future__ import annotations

import copy
import json
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

from tests.chart.protobuf_secret import decode_secret
from tests.chart.rights import Rights

Tree = dict[str, Any]
Path_ = tuple[str, ...]
Key = tuple[str, str, str]  # resource, namespace, name

RESOURCES: dict[str, dict[str, str]] = {
    "v1": {
        "services": "Service",
        "serviceaccounts": "ServiceAccount",
        "configmaps": "ConfigMap",
        "secrets": "Secret",
        "persistentvolumeclaims": "PersistentVolumeClaim",
        "namespaces": "Namespace",
        "pods": "Pod",
    },
    "apps/v1": {"deployments": "Deployment", "statefulsets": "StatefulSet"},
    "batch/v1": {"jobs": "Job"},
    "autoscaling/v2": {"horizontalpodautoscalers": "HorizontalPodAutoscaler"},
    "policy/v1": {"poddisruptionbudgets": "PodDisruptionBudget"},
    "networking.k8s.io/v1": {"networkpolicies": "NetworkPolicy"},
    "rbac.authorization.k8s.io/v1": {"roles": "Role", "rolebindings": "RoleBinding"},
    "admissionregistration.k8s.io/v1": {
        "validatingadmissionpolicies": "ValidatingAdmissionPolicy",
        "validatingadmissionpolicybindings": "ValidatingAdmissionPolicyBinding",
    },
}
CLUSTER_WIDE = {"namespaces", "validatingadmissionpolicies", "validatingadmissionpolicybindings"}
# Merge keys of the lists that strategic patches merge; other lists are replaced.
MERGE_KEYS = {
    "containers": "name", "initContainers": "name", "env": "name", "volumes": "name", "volumeMounts": "mountPath",
    "imagePullSecrets": "name", "topologySpreadConstraints": "topologyKey",
}  # fmt: skip
IMMUTABLE: dict[str, list[Path_]] = {
    "deployments": [("spec", "selector")],
    "statefulsets": [("spec", "selector"), ("spec", "serviceName"), ("spec", "volumeClaimTemplates")],
    "persistentvolumeclaims": [("spec", "accessModes"), ("spec", "storageClassName")],
    "rolebindings": [("roleRef",)],
}


class RefusedError(Exception):
    """An answer other than 2xx."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason = status, reason


@dataclass
class Pods:
    """What a Deployment controller keeps running: numbers of pods, and the template they were made from."""

    running: list[int] = field(default_factory=list)
    made: int = 0
    ended: int = 0
    template: str = ""

    def follow(self, spec: Tree) -> None:
        """Bring the pods to the spec: a changed template replaces all of them."""
        template = json.dumps(spec["template"], sort_keys=True)
        if self.template and template != self.template:
            self.ended += len(self.running)
            self.running = []
        self.template = template
        while len(self.running) > spec["replicas"]:
            self.running.pop()
            self.ended += 1
        while len(self.running) < spec["replicas"]:
            self.made += 1
            self.running.append(self.made)


def leaves(node: Any, path: Path_ = ()) -> Iterator[tuple[Path_, Any]]:
    """Every field of an object with its value; lists count as one field."""
    if isinstance(node, dict) and (node or not path):
        for key, value in node.items():
            yield from leaves(value, (*path, key))
    else:
        yield path, node


def owned_fields(obj: Tree) -> dict[Path_, Any]:
    """The fields that have owners: not the identity, not what the server writes."""
    skip = {("apiVersion",), ("kind",), ("metadata", "name"), ("metadata", "namespace")}
    own = {"uid", "resourceVersion", "managedFields", "creationTimestamp", "generation"}
    return {
        path: value
        for path, value in leaves(obj)
        if path not in skip and not (path[0] == "metadata" and len(path) > 1 and path[1] in own) and path[0] != "status"
    }


def strategic_merge(old: Any, patch: Any) -> Any:
    """A strategic merge patch, as far as Helm 3 makes them of this chart's objects."""
    if not (isinstance(old, dict) and isinstance(patch, dict)):
        return patch
    merged = dict(old)
    for key, value in patch.items():
        if key.startswith("$"):
            continue
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, list) and isinstance(old.get(key), list) and key in MERGE_KEYS:
            merged[key] = _merge_list(old[key], value, MERGE_KEYS[key], patch.get(f"$setElementOrder/{key}"))
        else:
            merged[key] = strategic_merge(old.get(key), value)
    return merged


def _merge_list(old: list[Tree], patch: list[Tree], by: str, order: list[Tree] | None) -> list[Tree]:
    items = {item[by]: item for item in old}
    for item in patch:
        if item.get("$patch") == "delete":
            items.pop(item[by], None)
        else:
            items[item[by]] = strategic_merge(items.get(item[by], {}), item)
    names = [item[by] for item in order] if order else []
    return [items[name] for name in [n for n in names if n in items] + [n for n in items if n not in names]]


class ApiServer:
    """`url` to talk to; `pods` of each Deployment by name; `rights` of the caller, None: all.

    Writes of the resources in `refuse` fail.
    """

    def __init__(self) -> None:
        self.objects: dict[Key, Tree] = {}
        self.owners: dict[Key, dict[tuple[str, str], set[Path_]]] = {}
        self.pods: dict[str, Pods] = {}
        self.rights: Rights | None = None
        self.refuse: set[str] = set()
        self._version = 0
        self._lock = threading.RLock()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            # One packet an answer: two would wait for each other's acknowledgement.
            wbufsize = 1 << 16

            def _do(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = self.rfile.read(length)
                try:
                    with server._lock:
                        status, answer = server.handle(
                            self.command, self.path, body, self.headers.get("Content-Type") or ""
                        )
                except RefusedError as refusal:
                    status = refusal.status
                    answer = {
                        "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": status,
                        "reason": refusal.reason, "message": str(refusal),
                    }  # fmt: skip
                text = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)
                self.wfile.flush()

            def __getattr__(self, name: str) -> Callable[[], None]:
                if name.startswith("do_"):
                    return self._do
                raise AttributeError(name)

            def log_message(self, *_: object) -> None:
                """A test reads no log."""

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True).start()
        self.put("namespaces", "", "llm", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "llm"}})

    def close(self) -> None:
        """Stop answering."""
        self._http.shutdown()
        self._http.server_close()

    def kubeconfig(self, folder: Path) -> Path:
        """A file that leads a client here."""
        file = folder / "kubeconfig"
        config = {
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": self.url}}],
            "users": [{"name": "test", "user": {}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test", "namespace": "llm"}}],
        }  # fmt: skip
        file.write_text(yaml.safe_dump(config))
        return file

    def handle(self, method: str, target: str, body: bytes, content_type: str) -> tuple[int, Tree]:
        """Answer one request."""
        url = urllib.parse.urlsplit(target)
        query = dict(urllib.parse.parse_qsl(url.query))
        parts = url.path.strip("/").split("/")
        if parts[0] not in ("api", "apis"):
            return self._about(parts)
        length = 2 if parts[0] == "api" else 3
        group_version = "/".join(parts[1:length])
        if len(parts) <= length:
            return self._discovery(parts, group_version)
        rest = parts[length:]
        namespace = ""
        if rest[0] == "namespaces" and len(rest) > 2:
            namespace, rest = rest[1], rest[2:]
        resource, name = [*rest, ""][:2]
        if resource not in RESOURCES.get(group_version, {}):
            raise RefusedError(404, "NotFound", f"the server could not find {url.path}")
        key = (resource, "" if resource in CLUSTER_WIDE else namespace, name)
        given = _decoded(body, content_type) if body and method != "DELETE" else {}
        self._authorize(method, group_version.rpartition("/")[0], resource, bool(name), given)
        manager = query.get("fieldManager", "unknown")
        if resource in self.refuse and method != "GET":
            raise RefusedError(422, "Invalid", "not now")
        match method:
            case "GET" if name:
                return 200, self._get(key)
            case "GET":
                return 200, self._list(group_version, resource, namespace, query.get("labelSelector", ""))
            case "POST":
                key = (key[0], key[1], given["metadata"]["name"])
                if key in self.objects:
                    raise RefusedError(409, "AlreadyExists", f"{resource} {key[2]!r} already exists")
                return 201, self._write(key, given, (manager, "Update"))
            case "PUT":
                return 200, self._write(key, given, (manager, "Update"))
            case "PATCH" if "apply-patch" in content_type:
                return 200, self._apply(key, given, manager, query.get("force") == "true")
            case "PATCH":
                return 200, self._write(key, strategic_merge(self._get(key), given), (manager, "Update"))
            case "DELETE":
                self._get(key)
                del self.objects[key], self.owners[key]
                if resource == "deployments":
                    self.pods[name].ended += len(self.pods[name].running)
                    self.pods[name].running = []
                return 200, {"kind": "Status", "apiVersion": "v1", "status": "Success"}
        raise RefusedError(405, "MethodNotAllowed", method)

    def scale(self, name: str, replicas: int, manager: str) -> None:
        """What `kubectl scale` and the autoscaler's controller do: an update of the subresource."""
        with self._lock:
            obj = copy.deepcopy(self.objects["deployments", "llm", name])
            obj["spec"]["replicas"] = replicas
            self._write(("deployments", "llm", name), obj, (manager, "Update"))

    def autoscale(self) -> None:
        """One look of the autoscaler's controller: no metrics, only its bounds."""
        for (resource, _, name), hpa in list(self.objects.items()):
            if resource == "horizontalpodautoscalers":
                now = self.objects["deployments", "llm", name]["spec"]["replicas"]
                wanted = min(max(now, hpa["spec"]["minReplicas"]), hpa["spec"]["maxReplicas"])
                if wanted != now:
                    self.scale(name, wanted, "kube-controller-manager")

    def put(self, resource: str, namespace: str, name: str, obj: Tree) -> None:
        """Put an object there, whoever made it."""
        self._write((resource, namespace, name), obj, ("admin", "Update"))

    def _authorize(self, method: str, group: str, resource: str, named: bool, given: Tree) -> None:
        if self.rights is None:
            return
        verb = {"GET": "get" if named else "list", "POST": "create", "PUT": "update", "PATCH": "patch"}.get(
            method, "delete"
        )
        cause = self.rights.refuses(verb, group, resource, given)
        if cause:
            raise RefusedError(403, "Forbidden", cause)

    def _about(self, parts: list[str]) -> tuple[int, Tree]:
        if parts == ["version"]:
            return 200, {"major": "1", "minor": "36", "gitVersion": "v1.36.0"}
        raise RefusedError(404, "NotFound", "/".join(parts))

    def _discovery(self, parts: list[str], group_version: str) -> tuple[int, Tree]:
        if parts == ["api"]:
            return 200, {"kind": "APIVersions", "versions": ["v1"]}
        if parts == ["apis"]:
            versions = [gv for gv in RESOURCES if "/" in gv]
            groups = [
                {
                    "name": gv.partition("/")[0],
                    "versions": [{"groupVersion": gv, "version": gv.partition("/")[2]}],
                    "preferredVersion": {"groupVersion": gv, "version": gv.partition("/")[2]},
                }
                for gv in versions
            ]
            return 200, {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
        if group_version not in RESOURCES:
            raise RefusedError(404, "NotFound", group_version)
        verbs = ["create", "delete", "get", "list", "patch", "update", "watch"]
        resources = [
            {"name": name, "singularName": kind.lower(), "namespaced": name not in CLUSTER_WIDE, "kind": kind,
             "verbs": verbs}
            for name, kind in RESOURCES[group_version].items()
        ]  # fmt: skip
        answer = {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": resources}
        return 200, answer

    def _get(self, key: Key) -> Tree:
        if key not in self.objects:
            raise RefusedError(404, "NotFound", f"{key[0]} {key[2]!r} not found")
        obj = copy.deepcopy(self.objects[key])
        obj["metadata"]["managedFields"] = [
            {"manager": manager, "operation": operation, "apiVersion": obj["apiVersion"], "fieldsType": "FieldsV1",
             "fieldsV1": _fields_v1(paths)}
            for (manager, operation), paths in self.owners[key].items() if paths
        ]  # fmt: skip
        return obj

    def _list(self, group_version: str, resource: str, namespace: str, selector: str) -> Tree:
        wanted = dict(term.split("=") for term in selector.split(",") if "=" in term and "!=" not in term)
        items = [
            self._get(key)
            for key, obj in self.objects.items()
            if key[0] == resource
            and key[1] == namespace
            and wanted.items() <= obj["metadata"].get("labels", {}).items()
        ]
        kind = RESOURCES[group_version][resource]
        return {"kind": f"{kind}List", "apiVersion": group_version, "metadata": {}, "items": items}

    def _write(self, key: Key, obj: Tree, by: tuple[str, str]) -> Tree:
        before = owned_fields(self.objects.get(key, {}))
        self._store(key, obj)
        after = owned_fields(self.objects[key])
        changed = {path for path, value in after.items() if path not in before or before[path] != value}
        gone = set(before) - set(after)
        owners = self.owners.setdefault(key, {})
        for paths in owners.values():
            paths -= changed | gone
        owners.setdefault(by, set()).update(changed)
        return self._get(key)

    def _apply(self, key: Key, given: Tree, manager: str, force: bool) -> Tree:
        live = copy.deepcopy(self.objects.get(key, {}))
        wanted, has = owned_fields(given), owned_fields(live)
        owners = self.owners.setdefault(key, {})
        me = (manager, "Apply")
        others = [(who, paths) for who, paths in owners.items() if who != me]
        conflicts = [
            f'conflict with "{who[0]}": .{".".join(path)}'
            for path, value in wanted.items()
            for who, paths in others
            if path in paths and has.get(path) != value
        ]
        if conflicts and not force:
            raise RefusedError(409, "Conflict", f"Apply failed with {len(conflicts)} conflicts: {'; '.join(conflicts)}")
        for path in owners.get(me, set()) - set(wanted):
            if not any(path in paths for _, paths in others):
                _remove(live, path)
        for path, value in wanted.items():
            _set(live, path, value)
        for part in ("apiVersion", "kind"):
            live[part] = given[part]
        live.setdefault("metadata", {}).update({k: given["metadata"][k] for k in ("name",)})
        if "namespace" in given["metadata"]:
            live["metadata"]["namespace"] = given["metadata"]["namespace"]
        self._store(key, live)
        for _, paths in others:
            paths -= {path for path, value in wanted.items() if has.get(path) != value}
        owners[me] = set(wanted)
        return self._get(key)

    def _store(self, key: Key, obj: Tree) -> None:
        obj = copy.deepcopy(obj)
        obj["metadata"].pop("managedFields", None)
        self._version += 1
        old = self.objects.get(key)
        obj["metadata"]["resourceVersion"] = str(self._version)
        obj["metadata"].setdefault("uid", old["metadata"]["uid"] if old else f"uid-{self._version}")
        if key[0] in ("deployments", "statefulsets"):
            obj["spec"].setdefault("replicas", 1)
            strategy = obj["spec"].setdefault("strategy", {}) if key[0] == "deployments" else {}
            if strategy.get("type") == "Recreate" and "rollingUpdate" in strategy:
                raise RefusedError(422, "Invalid", "spec.strategy.rollingUpdate: Forbidden: may not be specified")
        for path in IMMUTABLE.get(key[0], []):
            if old and _at(old, path) != _at(obj, path):
                raise RefusedError(422, "Invalid", f"{'.'.join(path)}: Invalid value: field is immutable")
        self.objects[key] = obj
        if key[0] == "deployments":
            self.pods.setdefault(key[2], Pods()).follow(obj["spec"])


def _decoded(body: bytes, content_type: str) -> Tree:
    tree: Tree = decode_secret(body) if "protobuf" in content_type else yaml.safe_load(body)
    return tree


def _at(obj: Tree, path: Path_) -> Any:
    node: Any = obj
    for part in path:
        node = node.get(part) if isinstance(node, dict) else None
    return node


def _set(obj: Tree, path: Path_, value: Any) -> None:
    for part in path[:-1]:
        if not isinstance(obj.get(part), dict):
            obj[part] = {}
        obj = obj[part]
    obj[path[-1]] = value


def _remove(obj: Tree, path: Path_) -> None:
    """Remove a field, and the objects that it leaves empty."""
    head, *rest = path
    if rest and isinstance(obj.get(head), dict):
        _remove(obj[head], tuple(rest))
        if obj[head]:
            return
    obj.pop(head, None)


def _fields_v1(paths: set[Path_]) -> Tree:
    tree: Tree = {}
    for path in paths:
        node = tree
        for part in path:
            node = node.setdefault(f"f:{part}", {})
    return tree
