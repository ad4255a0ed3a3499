"""The API server behind HTTPS, with the files that a pod finds its credentials in."""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import trustme
from weir.sidecar.clock import SystemClock

from tests.unit.sidecar.api_server import ApiServer, DroppedError, HangError, Reply


def _handler(server: ApiServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._handle(b"")

        def do_PATCH(self) -> None:
            self._handle(self.rfile.read(int(self.headers["Content-Length"])))

        def _handle(self, body: bytes) -> None:
            try:
                self._answer(server.handle(self.command, self.path, dict(self.headers.items()), body))
            except HangError as hang:
                time.sleep(hang.seconds)
                self.close_connection = True
            except DroppedError:
                self.close_connection = True
            self.close_connection |= server.closes_connections

        def _answer(self, reply: Reply) -> None:
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            if reply.lines is None:
                self.send_header("Content-Length", str(len(reply.body)))
                self.end_headers()
                self.wfile.write(reply.body)
                return
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for line in reply.lines:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
            self.wfile.write(b"0\r\n\r\n")

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
    server = ApiServer(SystemClock())
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
        server.end_watches()
        http.shutdown()
        http.server_close()
