"""TLS with certificates that may be renewed, and bearer tokens that may be changed, while the server runs."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import logging
import ssl
import stat
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc

from weir.config import ConfigError, ServerSettings
from weir.server.certificate_dates import Validity, validities

# A group that may read is what volumes with fsGroup have.
_TOO_OPEN = stat.S_IROTH | stat.S_IWOTH | stat.S_IWGRP
_EXPIRES_SOON = timedelta(days=7)
_TELL_EVERY_S = 86_400.0

# Probes carry no credentials, and their answer tells nothing.
OPEN_SERVICES = ("/grpc.health.v1.Health/",)

_log = logging.getLogger(__name__)
_Stamp = tuple[tuple[int, int, int, int], ...]


class Credentials:
    """The files that say who may connect, for those who watch them; filled by the functions below."""

    def __init__(self) -> None:
        self.tokens: TokenFile | None = None
        self.certificates: CertificateFiles | None = None

    @property
    def tokens_unusable(self) -> bool:
        """Whether no token could be read when the file was last looked at, which is now."""
        return self.tokens is not None and self.tokens.is_unusable()

    @property
    def certificate_ends_unix_s(self) -> float:
        """When the certificate in use, or the clients' CA, ends; 0 without TLS."""
        return self.certificates.ends_unix_s if self.certificates is not None else 0.0


def bind(
    server: grpc.aio.Server, address: str, settings: ServerSettings, credentials: Credentials | None = None
) -> int:
    """Bind `address` (HOST:PORT) with TLS where the settings ask for it; the port that was bound.

    Raises ConfigError for files that hold no usable certificate, RuntimeError when the port is taken.
    """
    secure = server_credentials(settings, credentials)
    bound = server.add_insecure_port(address) if secure is None else server.add_secure_port(address, secure)
    return int(bound)


def server_credentials(
    settings: ServerSettings, credentials: Credentials | None = None
) -> grpc.ServerCredentials | None:
    """Credentials that read the files again when they change; None without TLS. Raises ConfigError."""
    if settings.tls_cert_file is None or settings.tls_key_file is None:
        return None
    files = CertificateFiles(settings.tls_cert_file, settings.tls_key_file, settings.tls_client_ca_file)
    if credentials is not None:
        credentials.certificates = files
    return grpc.dynamic_ssl_server_credentials(
        files.load(), files.newer, require_client_authentication=settings.tls_client_ca_file is not None
    )


def token_interceptors(
    settings: ServerSettings, credentials: Credentials | None = None
) -> list[grpc.aio.ServerInterceptor]:
    """The interceptor that checks tokens, or none. Raises ConfigError for a file without a token."""
    if settings.auth_tokens_file is None:
        return []
    tokens = TokenFile(settings.auth_tokens_file, settings.auth_tokens_grace_s)
    if credentials is not None:
        credentials.tokens = tokens
    return [TokenInterceptor(tokens)]


class CertificateFiles:
    """A certificate chain, its key and the clients' CA, on files that a Secret's volume replaces as a whole."""

    def __init__(self, cert: str, key: str, client_ca: str | None) -> None:
        self._cert, self._key, self._client_ca = Path(cert), Path(key), Path(client_ca) if client_ca else None
        self._seen: _Stamp = ()
        self._validity: Validity | None = None  # unknown for a form that is not read here
        self._told_at = 0.0

    @property
    def ends_unix_s(self) -> float:
        """When clients, or the server, begin to refuse the certificate in use; 0 where that is not known."""
        return self._validity.ends.timestamp() if self._validity is not None else 0.0

    def load(self) -> grpc.ServerCertificateConfiguration:
        """Read the files, for gRPC. Raises ConfigError when they cannot be used."""
        pair, roots = self.read()
        self._tell_dates()
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
        self._seen, self._validity = stamp, _in_use(pair[1], roots)
        return pair, roots

    def newer(self) -> grpc.ServerCertificateConfiguration | None:
        """The files once more if they changed, for gRPC to ask at each handshake; wrong files change nothing."""
        stamp = self._stamp()
        if stamp == self._seen:
            if time.monotonic() - self._told_at > _TELL_EVERY_S:
                self._tell_dates()
            return None
        try:
            renewed = self.load()
        except ConfigError as error:
            self._seen = stamp
            _log.error("keeping the certificate in use: %s", error)
            return None
        _log.info("certificate renewed from %s", self._cert)
        return renewed

    def _tell_dates(self) -> None:
        """Log, once a day while it is so, that clients refuse the certificate, or soon will."""
        self._told_at = time.monotonic()
        now = datetime.now(UTC)
        if self._validity is None:
            return
        begins, ends = self._validity.begins, self._validity.ends
        if ends <= now:
            _log.error("the certificate (%s) ended on %s: connections are refused", self._cert, ends)
        elif begins > now:
            _log.error("the certificate (%s) is not valid before %s: connections are refused", self._cert, begins)
        elif ends - now < _EXPIRES_SOON:
            _log.warning("the certificate (%s) ends on %s", self._cert, ends)

    def _stamp(self) -> _Stamp:
        return tuple(_stamp_of(path) for path in (self._cert, self._key, self._client_ca) if path is not None)


def _in_use(chain: bytes, roots: bytes | None) -> Validity | None:
    """From when until when connections can be made: by the server's own certificate, and some root of its clients.

    What else is in the files may be old: chains carry cross-signed roots, and bundles those of long ago.
    """
    try:
        own = validities(chain)[0]
        ends = [own.ends] if roots is None else [own.ends, max(root.ends for root in validities(roots))]
    except ValueError as error:
        _log.warning("when the certificate ends is not known: %s", error)
        return None
    return Validity(own.begins, min(ends))


class TokenFile:
    """Tokens, one a line; blank lines and lines that begin with `#` do not count.

    A file that is emptied, removed or made unreadable may be on its way to its next content, so the tokens stay good
    for `grace_s`. After that none is: whoever took them away meant it.
    """

    def __init__(self, path: str, grace_s: float = 60.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = Path(path)
        self._grace_s = grace_s
        self._clock = clock
        self._unusable_since: float | None = None
        self._seen = _stamp_of(self._path)
        self._digests = read_tokens(path)
        self._tell_mode()

    def is_unusable(self) -> bool:
        """Whether the file holds no token, or cannot be read."""
        self._refresh()
        return self._unusable_since is not None

    def accepts(self, token: str) -> bool:
        """Whether `token` is one of them. Takes as long for a wrong token as for a right one."""
        self._refresh()
        digest = _digest(token)
        # All are compared, whichever matches: the time must not tell which one it was.
        return sum(hmac.compare_digest(digest, known) for known in self._digests) > 0

    def _refresh(self) -> None:
        stamp = _stamp_of(self._path)
        if stamp != self._seen:
            self._seen = stamp
            try:
                self._digests = read_tokens(str(self._path))
            except ConfigError as error:
                if self._unusable_since is None:
                    self._unusable_since = self._clock()
                    _log.error("%s: the tokens in use stay good for %.0f s", error, self._grace_s)
            else:
                self._unusable_since = None
                _log.info("%d tokens read from %s", len(self._digests), self._path)
                self._tell_mode()
        if self._digests and self._unusable_since is not None and self._clock() - self._unusable_since >= self._grace_s:
            self._digests = []
            _log.error("auth-tokens-file: %s has held no token for %.0f s: none is good", self._path, self._grace_s)

    def _tell_mode(self) -> None:
        with contextlib.suppress(OSError):
            mode = self._path.stat().st_mode
            if mode & _TOO_OPEN:
                _log.warning("%s is open to others (mode %04o): they can read or add tokens", self._path, mode & 0o7777)


def read_tokens(path: str) -> list[bytes]:
    """The tokens of a file, hashed. Raises ConfigError when it has none or cannot be read."""
    try:
        lines = [line.strip() for line in Path(path).read_text().splitlines()]
    except OSError as error:
        raise ConfigError(f"auth-tokens-file: {error}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"auth-tokens-file: {path} is not text") from None
    tokens = [line for line in lines if line and not line.startswith("#")]
    if not tokens:
        raise ConfigError(f"auth-tokens-file: {path} holds no token")
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
        await context.abort(
            grpc.StatusCode.UNAUTHENTICATED,
            "send a known token as metadata: authorization: Bearer TOKEN",
            trailing_metadata=(("grpc-retry-pushback-ms", "-1"),),
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


def _stamp_of(path: Path) -> tuple[int, int, int, int]:
    try:
        status = path.stat()
    except OSError:
        return (0, 0, 0, 0)
    return (status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_size)
