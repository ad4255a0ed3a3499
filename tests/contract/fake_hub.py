"""The part of the hub's HTTP interface that a download uses, on loopback, over one folder."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

COMMIT = "c" * 40


@contextmanager
def hub(repo: str, folder: Path) -> Iterator[tuple[dict[str, str], list[str]]]:
    """Serve `folder` as `repo`: variables that lead the hub's client here, and the files asked for so far."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            prefix = f"/{repo}/resolve/{COMMIT}/"
            if path in (
                f"/api/models/{repo}",
                f"/api/models/{repo}/revision/main",
                f"/api/models/{repo}/revision/{COMMIT}",
            ):
                files = [{"rfilename": file.name} for file in sorted(folder.iterdir())]
                self._answer(json.dumps({"id": repo, "sha": COMMIT, "siblings": files}).encode(), {})
            elif path == f"/api/models/{repo}/tree/{COMMIT}":
                tree = [
                    {"type": "file", "path": file.name, "size": file.stat().st_size, "oid": file.name}
                    for file in sorted(folder.iterdir())
                ]
                self._answer(json.dumps(tree).encode(), {"Content-Type": "application/json"})
            elif path.startswith(prefix) and (folder / path.removeprefix(prefix)).is_file():
                body = (folder / path.removeprefix(prefix)).read_bytes()
                if self.command == "GET":
                    asked.append(path.removeprefix(prefix))
                self._answer(body, {"X-Repo-Commit": COMMIT, "ETag": f'"{hashlib.sha256(body).hexdigest()}"'})
            else:
                self.send_response(404)
                self.send_header("Content-Length", "0")
                self.end_headers()

        do_HEAD = do_GET  # noqa: N815

        def _answer(self, body: bytes, headers: dict[str, str]) -> None:
            self.send_response(200)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield {"HF_ENDPOINT": f"http://127.0.0.1:{server.server_address[1]}", "HF_HUB_DISABLE_XET": "1"}, asked
    finally:
        server.shutdown()
        server.server_close()
