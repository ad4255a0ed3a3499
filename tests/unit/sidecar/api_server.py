"""A strict stand-in for a Kubernetes API server, as far as pods go.

Versions age: they are those of the whole cluster, in which other objects change all the time, and a watch from one that
is older than the window is answered with 410. Tokens expire, Roles decide, fields have owners. It has no socket, and no
time but that of the clock it is given: `https_front` and `simulation` put it behind the one and the other.
"""

from __future__ import annotations

import json
import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from weir.sidecar.clock import Clock, Inbox
from weir.sidecar.settings import PodIdentity

from tests.unit.sidecar import ownership
from tests.unit.sidecar.ownership import Manager, Tree
from tests.unit.sidecar.pods import RefusedError, StoredPod
from tests.unit.sidecar.rights import GATE_RULES, Rule, allowed

IDENTITY = PodIdentity("weir-0", "llm", "uid-0")
ACCOUNT = "system:serviceaccount:llm:weir"
FIRST_VERSION = 1000
# etcd forgets what is older than five minutes.
WINDOW_S = 300.0
# Versions that the rest of the cluster uses up.
CHURN_PER_S = 10.0
BOOKMARK_EVERY_S = 60.0
LAST_BOOKMARK_BEFORE_END_S = 2.0
END, CUT = "end", "cut"


@dataclass
class Fault:
    """The answer to the next call of a verb (`patch`, `watch`), instead of the right one."""

    verb: str
    status: int = 500
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | None = None
    hang_s: float = 0.0
    is_drop: bool = False


@dataclass(frozen=True)
class Call:
    """A call that arrived."""

    at: float
    verb: str
    path: str
    query: dict[str, str]
    token: str
    body: Tree


@dataclass(frozen=True)
class Reply:
    """Headers, and a body or lines that come as they come."""

    status: int
    headers: dict[str, str]
    body: bytes = b""
    lines: Iterator[bytes] | None = None


class DroppedError(ConnectionError):
    """The connection is closed without an answer."""


class HangError(Exception):
    """No answer comes for `seconds`, and then none either."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"{seconds} s")
        self.seconds = seconds


class ApiServer:
    """Pods, watches, and the requests for them. Safe to use from several threads."""

    def __init__(self, clock: Clock, rules: Sequence[Rule] = GATE_RULES) -> None:
        self.clock = clock
        self.rules = tuple(rules)
        self.lock = threading.RLock()
        self.pods: dict[str, StoredPod] = {}
        self.calls: list[Call] = []
        self.faults: deque[Fault] = deque()
        # When each token stops being one.
        self.tokens = {"first": float("inf")}
        self.gone_as_status = False
        self.sends_bookmarks = True
        # Cuts every watch short after so many seconds.
        self.longest_watch_s = float("inf")
        # Where sockets are: closes each after its answer, and does not say so.
        self.closes_connections = False
        self.port = 0
        self.folder = Path()
        self._watches: list[tuple[str, Inbox]] = []
        self._compacted = 0
        self._began_at = clock.now()
        self._writes_at: list[float] = []
        self.add(IDENTITY)

    def add(self, identity: PodIdentity) -> None:
        """Another pod."""
        with self.lock:
            self.pods[identity.name] = StoredPod(identity.name, identity.namespace, identity.uid, self._next_version())

    # What tests look at, and what they do to it.

    @property
    def env(self) -> dict[str, str]:
        return {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(self.port)}

    @property
    def pod(self) -> StoredPod:
        return self.pods[IDENTITY.name]

    @property
    def annotations(self) -> dict[str, str]:
        with self.lock:
            return dict(self.pod.tree["metadata"].get("annotations", {}))

    @property
    def conditions(self) -> dict[str, Tree]:
        with self.lock:
            return {c["type"]: dict(c) for c in self.pod.tree["status"]["conditions"]}

    def owner_of(self, key: str) -> str:
        """The only manager of an annotation."""
        (owner,) = [m.name for m, paths in self.pod.owned.items() if ("metadata", "annotations", key) in paths]
        return owner

    def of(self, verb: str) -> list[Call]:
        with self.lock:
            return [call for call in self.calls if call.verb == verb]

    def write_token(self, token: str) -> None:
        (self.folder / "token").write_text(token)

    def set_annotation(self, key: str, value: str | None, manager: str) -> None:
        """Somebody else writes an annotation, or (None) removes it, and asks no one."""
        with self.lock:
            pod = self.pod
            after = json.loads(json.dumps(pod.tree))
            notes = after["metadata"].setdefault("annotations", {})
            notes |= {key: value}
            if value is None:
                del notes[key]
            self._write(pod, after, ownership.update(pod.tree, after, pod.owned, Manager(manager, "Update")))

    def write(self, after: Tree) -> None:
        """Somebody else writes the pod."""
        with self.lock:
            self._write(self.pod, after, self.pod.owned)

    def set_owner(self, kind: str) -> None:
        with self.lock:
            self.pod.tree["metadata"]["ownerReferences"] = [{"kind": kind, "name": "weir", "uid": "owner-1"}]

    def delete(self) -> None:
        """Begin to terminate the pod."""
        with self.lock:
            after = json.loads(json.dumps(self.pod.tree))
            after["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
            self._write(self.pod, after, self.pod.owned)

    def compact(self) -> None:
        """Forget all versions but the one now, and say so to whoever watches."""
        with self.lock:
            self._compacted = self.version()

    def end_watches(self, how: str = END) -> None:
        """All of them end at once: in order, or (CUT) in the middle."""
        with self.lock:
            for _, inbox in self._watches:
                inbox.put(how)

    def version(self) -> int:
        """The cluster's, now."""
        return self._version_at(self.clock.now())

    # Requests.

    def handle(self, method: str, target: str, headers: dict[str, str], body: bytes) -> Reply:
        """Answer. Raises DroppedError or HangError where there is no answer."""
        url = urlsplit(target)
        query = {key: values[0] for key, values in parse_qs(url.query, keep_blank_values=True).items()}
        token = headers.get("Authorization", "").partition(" ")[2]
        tree = json.loads(body) if body else {}
        resource, name, verb = self._identify(method, url.path, query)
        with self.lock:
            self.calls.append(Call(self.clock.now(), verb, url.path, query, token, tree))
            fault = next((f for f in self.faults if f.verb == verb), None)
            if fault is not None:
                self.faults.remove(fault)
        if fault is not None:
            return _faulty(fault)
        try:
            self._authorize(token, verb, resource, name)
            if verb == "watch":
                return self._watch(query)
            return Reply(200, _JSON, json.dumps(self._answer(verb, resource, name, tree, query, headers)).encode())
        except RefusedError as error:
            return Reply(error.status, _JSON | error.headers, json.dumps(error.body()).encode())

    def _identify(self, method: str, path: str, query: dict[str, str]) -> tuple[str, str, str]:
        steps = path.split("/")
        assert steps[:4] == ["", "api", "v1", "namespaces"], path
        assert steps[5] == "pods", path
        name, subresource = ([*steps[6:], "", ""])[:2]
        verb = {"PATCH": "patch", "GET": "get" if name else "list"}[method]
        if verb == "list" and query.get("watch") in ("true", "1"):
            verb, name = "watch", query.get("fieldSelector", "").partition("metadata.name=")[2]
        return f"pods/{subresource}" if subresource else "pods", name, verb

    def _authorize(self, token: str, verb: str, resource: str, name: str) -> None:
        if self.clock.now() >= self.tokens.get(token, 0.0):
            raise RefusedError(401, "Unauthorized")
        if not allowed(self.rules, verb, resource, name):
            what = f'User "{ACCOUNT}" cannot {verb} resource "{resource}" in API group "" in the namespace "llm"'
            raise RefusedError(403, f'pods "{name}" is forbidden: {what}')

    def _answer(
        self, verb: str, resource: str, name: str, tree: Tree, query: dict[str, str], headers: dict[str, str]
    ) -> Tree:
        with self.lock:
            pod = self.pods.get(name)
            if pod is None and verb == "patch" and "uid" in tree.get("metadata", {}) and resource == "pods":
                # An apply would make the pod; with a uid there is nothing to make.
                raise RefusedError(409, f"uid mismatch: the provided object specified uid, and no {name} was found")
            if pod is None:
                raise RefusedError(404, f'pods "{name}" not found')
            if verb == "patch":
                kind, agent = headers.get("Content-Type", ""), headers.get("User-Agent", "")
                after, owned = pod.patched(tree, kind, query, agent, resource.partition("/")[2])
                self._write(pod, after, owned)
            return pod.shown()

    def _write(self, pod: StoredPod, after: Tree, owned: ownership.Owned) -> None:
        if pod.write(after, owned, self._next_version()):
            line = _event("MODIFIED", pod.shown())
            for name, inbox in self._watches:
                if name == after["metadata"]["name"]:
                    inbox.put(line)

    def _next_version(self) -> int:
        self._writes_at.append(self.clock.now())
        return self.version()

    def _version_at(self, moment: float) -> int:
        others = max(0.0, moment - self._began_at) * CHURN_PER_S
        return FIRST_VERSION + int(others) + bisect_right(self._writes_at, moment)

    # Watches.

    def _watch(self, query: dict[str, str]) -> Reply:
        selector = query.get("fieldSelector", "")
        if not selector.startswith("metadata.name="):
            raise RefusedError(400, f"field label not supported: {selector}")
        name, text = selector.partition("=")[2], query.get("resourceVersion", "")
        if text and not text.isdecimal():
            raise RefusedError(400, f"resourceVersion: Invalid value: {text}")
        limit_s = float(query.get("timeoutSeconds", 1800))
        with self.lock:
            begins_with, version = [], int(text or 0)
            oldest = max(self._compacted, self._version_at(self.clock.now() - WINDOW_S))
            pod = self.pods.get(name)
            if version == 0 and pod is not None:
                # Any state will do: the one that is there, and then what changes.
                begins_with.append(_event("ADDED", pod.shown()))
            elif 0 < version < oldest:
                gone = RefusedError(410, f"too old resource version: {version} ({oldest})")
                if self.gone_as_status:
                    raise gone
                begins_with += [_event("ERROR", gone.body()), END]
            elif version and pod is not None and version < int(pod.tree["metadata"]["resourceVersion"]):
                begins_with.append(_event("MODIFIED", pod.shown()))
            inbox = self.clock.inbox()
            for line in begins_with:
                inbox.put(line)
            self._watches.append((name, inbox))
        bookmarks = self.sends_bookmarks and query.get("allowWatchBookmarks") == "true"
        return Reply(200, _JSON, lines=self._lines(name, inbox, limit_s, bookmarks))

    def _lines(self, name: str, inbox: Inbox, limit_s: float, bookmarks: bool) -> Iterator[bytes]:
        began_at = self.clock.now()
        ends_at = began_at + min(limit_s, self.longest_watch_s)
        bookmark_at = began_at + BOOKMARK_EVERY_S if bookmarks else float("inf")
        try:
            while (now := self.clock.now()) < ends_at:
                # The last one comes shortly before the end, so that nothing is missed by going on from it.
                bookmark_at = min(bookmark_at, max(now, ends_at - LAST_BOOKMARK_BEFORE_END_S)) if bookmarks else ends_at
                message = inbox.get(min(bookmark_at, ends_at) - now)
                if message == END:
                    return
                if message == CUT:
                    raise DroppedError
                if message is not None:
                    yield message.encode()
                elif self.clock.now() >= bookmark_at and bookmarks:
                    metadata = {"resourceVersion": str(self.version()), "creationTimestamp": None}
                    yield _event("BOOKMARK", {"kind": "Pod", "apiVersion": "v1", "metadata": metadata}).encode()
                    bookmarks = self.clock.now() < ends_at - LAST_BOOKMARK_BEFORE_END_S
                    bookmark_at += BOOKMARK_EVERY_S
        finally:
            with self.lock:
                self._watches = [watch for watch in self._watches if watch[1] is not inbox]


_JSON = {"Content-Type": "application/json"}


def _event(kind: str, thing: Any) -> str:
    return json.dumps({"type": kind, "object": thing}) + "\n"


def _faulty(fault: Fault) -> Reply:
    if fault.hang_s:
        raise HangError(fault.hang_s)
    if fault.is_drop:
        raise DroppedError
    error = RefusedError(fault.status, f"fault {fault.status}", fault.headers)
    body = json.dumps(error.body()).encode() if fault.body is None else fault.body
    return Reply(fault.status, _JSON | fault.headers, body)
