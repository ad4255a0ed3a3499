"""/metrics and /healthz. Nothing can be changed through this port."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from weir.listening import listening_socket

_log = logging.getLogger(__name__)


class HttpPort:
    """An HTTP server in threads of its own. Raises OSError when the port is taken."""

    def __init__(self, host: str, port: int, registry: CollectorRegistry, is_healthy: Callable[[], bool]) -> None:
        class Handler(BaseHTTPRequestHandler):
            timeout = 10

            def do_GET(self) -> None:
                if self.path == "/metrics":
                    self._answer(200, generate_latest(registry), CONTENT_TYPE_LATEST)
                elif self.path == "/healthz":
                    healthy = is_healthy()
                    self._answer(200 if healthy else 503, b"ok\n" if healthy else b"the main loop stands still\n")
                else:
                    self._answer(404, b"not found\n")

            def _answer(self, status: int, body: bytes, kind: str = "text/plain; charset=utf-8") -> None:
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """A scrape is no event."""

        self._server = ThreadingHTTPServer((host, port), Handler, bind_and_activate=False)
        self._server.socket.close()
        self._server.socket = listening_socket(host, port)
        self._server.server_address = self._server.socket.getsockname()
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), name="http", daemon=True)

    def start(self) -> None:
        """Begin to answer."""
        _log.info("metrics and health on port %d", self.port)
        self._thread.start()

    def stop(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._server.server_close()
