"""TLS with certificates that may be renewed, and bearer tokens that may be changed, while the server runs.

A token may be for one tenant: then the server knows whose a call is, and need not believe it.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import ssl
from collections.abc import Awaitable, Callable, Collection, Mapping
from pathlib import Path

import grpc

from weir.config import ConfigError, ServerSettings
from weir.server.errors import ErrorStatus, StatusError, status_of
from weir.server.grants import Grant, read_grants
from weir.server.metadata import AUTHORIZATION_KEY, TENANT_KEY, text_of

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


def callers(settings: ServerSettings, tenants: Collection[str] = ()) -> Callers:
    """Who calls, by the settings' tokens; `tenants` are the configured ones. Raises ConfigError for a wrong file."""
    file = settings.auth_tokens_file
    return Callers(None if file is None else TokenFile(file, tenants))


def token_interceptors(known: Callers) -> list[grpc.aio.ServerInterceptor]:
    """The interceptor that checks tokens, or none where none are asked for."""
    return [TokenInterceptor(known)] if known.asks_for_tokens else []


class CertificateFiles:
    """A certificate chain, its key and the clients' CA, on files that a Secret's volume replaces as a whole."""

    def __init__(self, cert: str, key: str, client_ca: str | None) -> None:
        self._cert, self._key, self._client_ca = Path(cert), Path(key), Path(client_ca) if client_ca else None
        self._seen: _Stamp = ()

    def load(self) -> grpc.ServerCertificateConfiguration:
        """Read the files, for gRPC. Raises ConfigError when they cannot be used."""
        pair, roots = self.read()
        return grpc.ssl_server_certificate_configuration([pair], root_certificates=roots)

    def read(self) -> tuple[tuple[bytes, bytes], bytes | None]:
        """Key and certificate, and the clients' CA.

        Raises ConfigError when files are missing, unreadable or do not belong together.
        """
        stamp = self._stamp()
        try:
            # A key under a password would be asked for on the terminal.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self._cert, self._key, password="")
            roots = self._client_ca.read_bytes() if self._client_ca else None
            if self._client_ca:
                ssl.create_default_context(cafile=str(self._client_ca))
            pair = (self._key.read_bytes(), self._cert.read_bytes())
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"tls-cert-file {self._cert}, tls-key-file {self._key}, tls-client-ca-file {self._client_ca}: {error}"
            ) from None
        self._seen = stamp
        return pair, roots

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
    """Tokens, one a line, each for a tenant or for none (see `weir.token_lines`). tenants: the configured ones."""

    def __init__(self, path: str, tenants: Collection[str] = ()) -> None:
        self._path = Path(path)
        self._tenants = tenants
        self._seen = _stamp_of(self._path)
        self._grants = read_tokens(path)
        self._tell_unknown_tenants()

    def grant(self, token: str) -> Grant | None:
        """What `token` is good for; None: it is unknown. Takes as long for a wrong token as for a right one."""
        self._refresh()
        digest = _digest(token)
        # All are compared, whichever matches: the time must not tell which one it was.
        found = [grant for known, grant in self._grants if hmac.compare_digest(digest, known)]
        return found[0] if found else None

    def _refresh(self) -> None:
        stamp = _stamp_of(self._path)
        if stamp == self._seen:
            return
        self._seen = stamp
        try:
            self._grants = read_tokens(str(self._path))
        except ConfigError as error:
            _log.error("keeping the tokens in use: %s", error)
        else:
            _log.info("%d tokens read from %s", len(self._grants), self._path)
            self._tell_unknown_tenants()

    def _tell_unknown_tenants(self) -> None:
        for tenant in sorted(_tenants_in(self._grants) - set(self._tenants)):
            _log.warning(
                "auth-tokens-file: tenant %s is new, and has the place of default until the server restarts", tenant
            )


def read_tokens(path: str) -> list[tuple[bytes, Grant]]:
    """The tokens of a file, hashed, and what they are good for. Raises ConfigError when there are none, or wrong ones."""
    try:
        grants = read_grants(Path(path).read_text())
    except UnicodeDecodeError:
        raise ConfigError(f"auth-tokens-file: {path} is not text") from None
    except OSError as error:
        raise ConfigError(f"auth-tokens-file: {error}") from None
    except ValueError as error:
        raise ConfigError(f"auth-tokens-file: {path}: {error}") from None
    if not grants:
        raise ConfigError(f"auth-tokens-file: {path} holds no token")
    return [(_digest(token), grant) for token, grant in grants.items()]


def tenants_of_tokens(settings: ServerSettings) -> frozenset[str]:
    """The tenants that the token file names now, if there is one. Raises ConfigError."""
    return frozenset() if settings.auth_tokens_file is None else _tenants_in(read_tokens(settings.auth_tokens_file))


class Callers:
    """Whose call one is: its token's tenant where there are tokens, otherwise the one it names."""

    def __init__(self, tokens: TokenFile | None = None) -> None:
        self._tokens = tokens

    @property
    def asks_for_tokens(self) -> bool:
        """Whether calls need one."""
        return self._tokens is not None

    def tenant_of(self, metadata: Mapping[str, str]) -> str:
        """The tenant, empty for none. Raises StatusError without a known token, or with one of another tenant."""
        named = metadata.get(TENANT_KEY, "")
        if self._tokens is None:
            return named
        scheme, _, token = metadata.get(AUTHORIZATION_KEY, "").partition(" ")
        grant = self._tokens.grant(token.strip()) if scheme.lower() == "bearer" else None
        if grant is None:
            message = "send a known token as metadata: authorization: Bearer TOKEN"
            raise StatusError(grpc.StatusCode.UNAUTHENTICATED, message)
        return grant.tenant_of(named)


class TokenInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Refuses every RPC, but for health, that has no known `authorization: Bearer TOKEN` or one of another tenant."""

    def __init__(self, callers: Callers) -> None:
        self._callers = callers

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler | None:
        """Let the call through, or hand back a handler that refuses it."""
        handler = await continuation(handler_call_details)
        if handler is None or handler_call_details.method.startswith(OPEN_SERVICES):
            return handler
        try:
            self._callers.tenant_of(text_of(handler_call_details.invocation_metadata))
        except StatusError as error:
            return _refusal_like(handler, status_of(error))
        return handler


def _refusal_like(handler: grpc.RpcMethodHandler, status: ErrorStatus) -> grpc.RpcMethodHandler:
    async def refuse(request: object, context: grpc.aio.ServicerContext) -> None:
        await context.abort(status.code, status.message, trailing_metadata=status.trailers)

    make = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }[handler.request_streaming, handler.response_streaming]
    return make(refuse, handler.request_deserializer, handler.response_serializer)


def _tenants_in(grants: Collection[tuple[bytes, Grant]]) -> frozenset[str]:
    return frozenset(grant.tenant for _, grant in grants if grant.tenant)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def _stamp_of(path: Path) -> tuple[int, int, int]:
    try:
        status = path.stat()
    except OSError:
        return (0, 0, 0)
    return (status.st_mtime_ns, status.st_ino, status.st_size)
