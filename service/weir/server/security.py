"""TLS with certificates that may be renewed while the server runs."""

from __future__ import annotations

import logging
import ssl
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc

from weir.config import ConfigError, ServerSettings
from weir.server.certificate_dates import Validity, validities
from weir.server.file_stamp import Stamp, stamp_of
from weir.server.tokens import TokenFile

_EXPIRES_SOON = timedelta(days=7)
_TELL_EVERY_S = 86_400.0

_log = logging.getLogger(__name__)


class Credentials:
    """The files that say who may connect, for those who watch them; `server_credentials` fills in the certificates."""

    def __init__(self, tokens: TokenFile | None = None) -> None:
        self.tokens = tokens
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


class CertificateFiles:
    """A certificate chain, its key and the clients' CA, on files that a Secret's volume replaces as a whole."""

    def __init__(self, cert: str, key: str, client_ca: str | None) -> None:
        self._cert, self._key, self._client_ca = Path(cert), Path(key), Path(client_ca) if client_ca else None
        self._seen: tuple[Stamp, ...] = ()
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

    def _stamp(self) -> tuple[Stamp, ...]:
        return tuple(stamp_of(path) for path in (self._cert, self._key, self._client_ca) if path is not None)


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
