"""TLS with certificates that may be renewed, and bearer tokens that may be changed, while the server runs."""

from __future__ import annotations

import hashlib
import hmac
import logging
import ssl
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path

import grpc

from weir.config import ConfigError, ServerSettings
from weir.server.metadata import REQUEST_ID_KEY, given_id

# Probes carry no credentials, and their answer tells nothing.
OPEN_SERVICES = ("/grpc.health.v1.Health/",)

_log = logging.getLogger(__name__)
_Stamp = tuple[tuple[int, int, int], ...]


def bind(server: grpc.aio.Server, address: str, settings: ServerSettings) -> int:
    """Bind `address` (HOST:PORT) with TLS where the settings ask for it; the port that was bound.

    Raises ConfigError for files that hold no usable certificate, RuntimeError when the port is taken.
    """
    credentials = server_credentials(settings)
    bound = server.add_insecure_port(address) if credentials is None else server.add_secure_port(address, credentials)
    return int(bound)


def server_credentials(settings: ServerSettings) -> grpc.ServerCredentials | None:
    """Credentials that read the files again when they change; None without TLS. Raises ConfigError."""
    if settings.tls_cert_file is None or settings.tls_key_file is None:
        return None
    files = CertificateFiles(settings.tls_cert_file, settings.tls_key_file, settings.tls_client_ca_file)
    return grpc.dynamic_ssl_server_credentials(
        files.load(), files.newer, require_client_authentication=settings.tls_client_ca_file is not None
    )


def token_interceptors(settings: ServerSettings) -> list[grpc.aio.ServerInterceptor]:
    """The interceptor that checks tokens, or none. Raises ConfigError for a file without a token."""
    if settings.auth_tokens_file is None:
        return []
    return [TokenInterceptor(TokenFile(settings.auth_tokens_file))]


class CertificateFiles:
    """A certificate chain, its key and the clients' CA, on files that a Secret's volume replaces as a whole."""

    def __init__(self, cert: str, key: str, client_ca: str | None) -> None:
        self._cert, self._key, self._client_ca = Path(cert), Path(key), Path(client_ca) if client_ca else None
        self._seen: _Stamp = ()

    def load(self) -> grpc.ServerCertificateConfiguration:
        """Read the files. Raises ConfigError when they are missing, unreadable or do not belong together."""
        stamp = self._stamp()
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self._cert, self._key)
            roots = self._client_ca.read_bytes() if self._client_ca else None
            if self._client_ca:
                ssl.create_default_context(cafile=str(self._client_ca))
            pair = (self._key.read_bytes(), self._cert.read_bytes())
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"tls-cert-file {self._cert}, tls-key-file {self._key}, tls-client-ca-file {self._client_ca}: {error}"
            ) from None
        self._seen = stamp
        return grpc.ssl_server_certificate_configuration([pair], root_certificates=roots)

    def newer(self) -> grpc.ServerCertificateConfiguration | None:
        """The files once more if they changed, for gRPC to ask at each handshake; wrong files change nothing."""
        stamp = self._stamp()
        if stamp == self._seen:
            return None
        try:
            renewed = self.load()
        except ConfigError as error:
            self._seen = stamp
            _log.error("keeping the certificate in use: %s", error)
            return None
        _log.info("certificate renewed from %s", self._cert)
        return renewed

    def _stamp(self) -> _Stamp:
        return tuple(_stamp_of(path) for path in (self._cert, self._key, self._client_ca) if path is not None)


class TokenFile:
    """Tokens, one a line; blank lines and lines that begin with `#` do not count."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._seen = _stamp_of(self._path)
        self._digests = self._read()

    def accepts(self, token: str) -> bool:
        """Whether `token` is one of them. Takes as long for a wrong token as for a right one."""
        self._refresh()
        digest = _digest(token)
        # All are compared, whichever matches: the time must not tell which one it was.
        return sum(hmac.compare_digest(digest, known) for known in self._digests) > 0

    def _refresh(self) -> None:
        stamp = _stamp_of(self._path)
        if stamp == self._seen:
            return
        self._seen = stamp
        try:
            self._digests = self._read()
        except ConfigError as error:
            _log.error("keeping the tokens in use: %s", error)
        else:
            _log.info("%d tokens read from %s", len(self._digests), self._path)

    def _read(self) -> list[bytes]:
        try:
            lines = [line.strip() for line in self._path.read_text().splitlines()]
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"auth-tokens-file: {error}") from None
        tokens = [line for line in lines if line and not line.startswith("#")]
        if not tokens:
            raise ConfigError(f"auth-tokens-file: {self._path} holds no token")
        return [_digest(token) for token in tokens]


class TokenInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Answers UNAUTHENTICATED to every RPC without a known `authorization: Bearer TOKEN`, but for health."""

    def __init__(self, tokens: TokenFile) -> None:
        self._tokens = tokens

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler | None:
        """Let the call through, or hand back a handler that refuses it."""
        handler = await continuation(handler_call_details)
        if handler is None or handler_call_details.method.startswith(OPEN_SERVICES):
            return handler
        given = dict(handler_call_details.invocation_metadata or ()).get("authorization", "")
        scheme, _, token = given.partition(" ") if isinstance(given, str) else ("", "", "")
        if scheme.lower() == "bearer" and self._tokens.accepts(token.strip()):
            return handler
        return _refusal_like(handler)


def _refusal_like(handler: grpc.RpcMethodHandler) -> grpc.RpcMethodHandler:
    async def refuse(request: object, context: grpc.aio.ServicerContext) -> None:
        request_id = given_id(context) or uuid.uuid4().hex
        await context.abort(
            grpc.StatusCode.UNAUTHENTICATED,
            "send a known token as metadata: authorization: Bearer TOKEN",
            trailing_metadata=(("grpc-retry-pushback-ms", "-1"), (REQUEST_ID_KEY, request_id)),
        )

    make = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }[handler.request_streaming, handler.response_streaming]
    return make(refuse, handler.request_deserializer, handler.response_serializer)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def _stamp_of(path: Path) -> tuple[int, int, int]:
    try:
        status = path.stat()
    except OSError:
        return (0, 0, 0)
    return (status.st_mtime_ns, status.st_ino, status.st_size)
