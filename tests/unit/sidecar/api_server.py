"""A small Kubernetes API server over HTTPS: one pod, server-side apply with field managers, watches, faults on call."""

from __future__ import annotations

import json
import queue
import ssl
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import trustme
from weir.sidecar.settings import PodIdentity

IDENTITY = PodIdentity("weir-0", "llm", "uid-1")
OLD_VERSION = 10


@dataclass
class Fault:
    """The answer to the next call of a verb (`get`, `patch`, `watch`), instead of the right one."""

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
    token: str
    body: dict[str, Any]


class ApiServer:
    """State and behaviour; `running` gives one with its port, its CA and a token folder."""

    def __init__(self) -> None:
        self.pod: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": IDENTITY.name,
                "namespace": IDENTITY.namespace,
                "uid": IDENTITY.uid,
                "resourceVersion": str(OLD_VERSION),
                "annotations": {},
                "ownerReferences": [{"kind": "ReplicaSet", "name": "weir"}],
            },
            "status": {"conditions": []},
        }
        self.owners: dict[str, str] = {}
        self.tokens = {"first"}
        self.calls: list[Call] = []
        self.faults: deque[Fault] = deque()
        self.watches: list[queue.Queue[dict[str, Any] | None]] = []
        self.lock = threading.RLock()
        self.port = 0
        self.folder = Path()

    @property
    def env(self) -> dict[str, str]:
        return {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(self.port)}

    @property
    def annotations(self) -> dict[str, str]:
        found: dict[str, str] = self.pod["metadata"]["annotations"]
        return found

    def of(self, verb: str) -> list[Call]:
        with self.lock:
            return [call for call in self.calls if call.verb == verb]

    def write_token(self, token: str) -> None:
        (self.folder / "token").write_text(token)

    def own(self, key: str, value: str, manager: str) -> None:
        """Another manager writes an annotation."""
        with self.lock:
            self.owners[key] = manager
            self.annotations[key] = value
            self.changed()

    def changed(self, kind: str = "MODIFIED") -> None:
        metadata = self.pod["metadata"]
        metadata["resourceVersion"] = str(int(metadata["resourceVersion"]) + 1)
        for watch in self.watches:
            watch.put({"type": kind, "object": json.loads(json.dumps(self.pod))})

    def delete(self) -> None:
        """Begin to terminate the pod."""
        with self.lock:
            self.pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
            self.changed()

    def apply(self, body: dict[str, Any], manager: str, force: bool) -> tuple[int, dict[str, Any]]:
        if body["metadata"].get("uid") != self.pod["metadata"]["uid"]:
            return 409, {"message": "the UID in the precondition does not match"}
        for key, value in body["metadata"].get("annotations", {}).items():
            owner = self.owners.get(key, manager)
            if owner != manager and self.annotations.get(key) != value and not force:
                return 409, {"message": f'Apply failed with 1 conflict: conflict with "{owner}": {key}'}
            self.owners[key] = manager
            self.annotations[key] = value
        for condition in body.get("status", {}).get("conditions", []):
            kept = [c for c in self.pod["status"]["conditions"] if c["type"] != condition["type"]]
            self.pod["status"]["conditions"] = [*kept, condition]
        self.changed()
        return 200, self.pod


def _handler(server: ApiServer) -> type[BaseHTTPRequestHandler]:
    pods = f"/api/v1/namespaces/{IDENTITY.namespace}/pods"

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            url = urlsplit(self.path)
            query = {key: values[0] for key, values in parse_qs(url.query).items()}
            verb = "watch" if query.get("watch", "").lower() == "true" else "get"
            if self._begins(verb, url.path, {}):
                if verb == "watch":
                    assert query["fieldSelector"] == f"metadata.name={IDENTITY.name}"
                    self._watch(int(query["resourceVersion"]), float(query["timeoutSeconds"]))
                elif url.path == f"{pods}/{IDENTITY.name}":
                    self._answer(200, server.pod)
                else:
                    self._answer(404, {"message": "not found"})

        def do_PATCH(self) -> None:
            url = urlsplit(self.path)
            query = {key: values[0] for key, values in parse_qs(url.query).items()}
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self._begins("patch", url.path, body):
                assert self.headers["Content-Type"] == "application/apply-patch+yaml"
                wanted = f"{pods}/{IDENTITY.name}" + ("/status" if "status" in body else "")
                assert url.path == wanted
                with server.lock:
                    force = query.get("force", "false").lower() == "true"
                    self._answer(*server.apply(body, query["fieldManager"], force))

        def _begins(self, verb: str, path: str, body: dict[str, Any]) -> bool:
            token = self.headers.get("Authorization", "").removeprefix("bearer ")
            with server.lock:
                server.calls.append(Call(time.monotonic(), verb, path, token, body))
                fault = next((f for f in server.faults if f.verb == verb), None)
                if fault is not None:
                    server.faults.remove(fault)
            if fault is not None:
                time.sleep(fault.hang_s)
                if fault.is_drop:
                    self.close_connection = True
                else:
                    self._answer(fault.status, {"message": f"fault {fault.status}"}, fault.headers, fault.body)
                return False
            if token not in server.tokens:
                self._answer(401, {"message": "Unauthorized"})
                return False
            return True

        def _watch(self, version: int, limit_s: float) -> None:
            events: queue.Queue[dict[str, Any] | None] = queue.Queue()
            with server.lock:
                if version < OLD_VERSION:
                    gone = {"code": 410, "reason": "Expired", "message": "too old resource version"}
                    events.put({"type": "ERROR", "object": gone})
                    events.put(None)
                elif version < int(server.pod["metadata"]["resourceVersion"]):
                    events.put({"type": "MODIFIED", "object": server.pod})
                server.watches.append(events)
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            ends_at = time.monotonic() + limit_s
            while (left := ends_at - time.monotonic()) > 0:
                try:
                    event = events.get(timeout=left)
                except queue.Empty:
                    break
                if event is None:
                    break
                line = json.dumps(event).encode() + b"\n"
                self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
            self.wfile.write(b"0\r\n\r\n")

        def _answer(
            self, status: int, tree: object, headers: dict[str, str] | None = None, body: bytes | None = None
        ) -> None:
            data = json.dumps(tree).encode() if body is None else body
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            """Quiet."""

    return Handler


class _Quiet(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """A client that gave up is part of these tests."""


@contextmanager
def running(folder: Path) -> Iterator[ApiServer]:
    """An API server on a free port, with `token` and `ca.crt` in `folder` as a pod would find them."""
    server = ApiServer()
    ca = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert("127.0.0.1").configure_cert(context)
    http = _Quiet(("127.0.0.1", 0), _handler(server))
    http.socket = context.wrap_socket(http.socket, server_side=True)
    server.port = http.server_address[1]
    server.folder = folder
    ca.cert_pem.write_to_path(folder / "ca.crt")
    server.write_token("first")
    thread = threading.Thread(target=http.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        for watch in server.watches:
            watch.put(None)
        http.shutdown()
        http.server_close()
