"""TLS, client certificates, renewal: with a real server and real handshakes."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st
from weir.config import ConfigError, ServerSettings, load
from weir.server.certificate_dates import Validity, validities
from weir.server.security import (
    CertificateFiles,
    Credentials,
    server_credentials,
)
from weir.telemetry.metrics import Metrics

from tests.unit.server.echo_server import Serve, ask, levels, replace


@dataclass
class Pki:
    """Certificates in files, as a Secret's volume would hold them."""

    folder: Path
    ca: trustme.CA

    @property
    def settings(self) -> ServerSettings:
        return ServerSettings(tls_cert_file=str(self.folder / "tls.crt"), tls_key_file=str(self.folder / "tls.key"))

    @property
    def mutual(self) -> ServerSettings:
        return self.settings.model_copy(update={"tls_client_ca_file": str(self.folder / "ca.crt")})

    def issue(self, name: str = "localhost") -> None:
        issued = self.ca.issue_cert(name)
        replace(self.folder / "tls.crt", b"".join(b.bytes() for b in issued.cert_chain_pems))
        replace(self.folder / "tls.key", issued.private_key_pem.bytes())
        replace(self.folder / "ca.crt", self.ca.cert_pem.bytes())


@pytest.fixture
def pki(tmp_path: Path) -> Pki:
    made = Pki(tmp_path, trustme.CA())
    made.issue()
    return made


def credentials(pki: Pki, client: trustme.LeafCert | None = None) -> grpc.ChannelCredentials:
    if client is None:
        return grpc.ssl_channel_credentials(pki.ca.cert_pem.bytes())
    chain = b"".join(b.bytes() for b in client.cert_chain_pems)
    return grpc.ssl_channel_credentials(pki.ca.cert_pem.bytes(), client.private_key_pem.bytes(), chain)


async def dial_tls(port: int, creds: grpc.ChannelCredentials) -> bytes:
    # A local subchannel pool: otherwise a second channel would reuse the first one's connection and make no handshake.
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.secure_channel(f"localhost:{port}", creds, options=options) as channel:
        return await ask(channel)


async def test_without_settings_there_is_plain_text(serve: Serve) -> None:
    port = await serve(ServerSettings())
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        assert await ask(channel) == b"hello"
    assert server_credentials(ServerSettings()) is None


async def test_tls_serves_those_who_trust_the_ca_and_no_plain_text(serve: Serve, pki: Pki) -> None:
    port = await serve(pki.settings)
    assert await dial_tls(port, credentials(pki)) == b"hello"
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await ask(channel)
    assert error.value.code() == grpc.StatusCode.UNAVAILABLE


async def test_mutual_tls_asks_for_a_certificate_of_the_clients_ca(serve: Serve, pki: Pki) -> None:
    port = await serve(pki.mutual)
    assert await dial_tls(port, credentials(pki, pki.ca.issue_cert("client"))) == b"hello"
    for wrong in (None, trustme.CA().issue_cert("client")):
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await dial_tls(port, credentials(pki, wrong))
        assert error.value.code() == grpc.StatusCode.UNAVAILABLE


async def test_a_renewed_certificate_is_served_without_a_restart(serve: Serve, pki: Pki) -> None:
    port = await serve(pki.settings)
    old = credentials(pki)
    assert await dial_tls(port, old) == b"hello"
    pki.ca = trustme.CA()
    pki.issue()
    assert await dial_tls(port, credentials(pki)) == b"hello"
    with pytest.raises(grpc.aio.AioRpcError):
        await dial_tls(port, old)


async def test_a_broken_renewal_keeps_the_certificate_in_use(
    serve: Serve, pki: Pki, caplog: pytest.LogCaptureFixture
) -> None:
    port = await serve(pki.settings)
    replace(pki.folder / "tls.key", b"not a key")
    for _ in range(2):
        assert await dial_tls(port, credentials(pki)) == b"hello"
    assert [r.levelname for r in caplog.records if "keeping the certificate" in r.message] == ["ERROR"]


async def test_a_renewal_with_a_new_clients_ca_counts(serve: Serve, pki: Pki) -> None:
    port = await serve(pki.mutual)
    clients = trustme.CA()
    replace(pki.folder / "ca.crt", clients.cert_pem.bytes())
    assert await dial_tls(port, credentials(pki, clients.issue_cert("client"))) == b"hello"


def test_files_that_do_not_belong_together_stop_the_start(pki: Pki) -> None:
    other = trustme.CA().issue_cert("localhost")
    replace(pki.folder / "tls.key", other.private_key_pem.bytes())
    with pytest.raises(ConfigError, match="tls-key-file"):
        server_credentials(pki.settings)
    with pytest.raises(ConfigError, match="nowhere"):
        CertificateFiles("/nowhere/tls.crt", "/nowhere/tls.key", None).load()


NOW = datetime.now(UTC).replace(microsecond=0)


def certificate(begins: datetime, ends: datetime, name: str = "localhost") -> tuple[bytes, bytes]:
    """A self-signed certificate of these dates, and its key, as `cryptography` writes them."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    made = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number(), begins, ends)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return made.public_bytes(Encoding.PEM), private


@pytest.mark.parametrize(
    ("begins", "ends"),
    [
        (datetime(1950, 1, 1, tzinfo=UTC), datetime(2049, 12, 31, 23, 59, 59, tzinfo=UTC)),
        (datetime(1999, 12, 31, 23, 59, 59, tzinfo=UTC), datetime(2000, 1, 1, tzinfo=UTC)),
        # From 2050 on the standard has another form.
        (datetime(2024, 2, 29, 12, tzinfo=UTC), datetime(2050, 1, 1, tzinfo=UTC)),
        (datetime(2051, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)),
    ],
)
def test_the_dates_of_a_certificate_are_read_as_they_were_written(begins: datetime, ends: datetime) -> None:
    chain = certificate(begins, ends)[0] + b"text between\n" + certificate(NOW, NOW + timedelta(days=1))[0]
    assert validities(chain) == [Validity(begins, ends), Validity(NOW, NOW + timedelta(days=1))]


def test_the_dates_that_the_ca_of_these_tests_writes_are_read_too(pki: Pki) -> None:
    pem = (pki.folder / "tls.crt").read_bytes()
    expected = [
        Validity(made.not_valid_before_utc, made.not_valid_after_utc) for made in x509.load_pem_x509_certificates(pem)
    ]
    assert validities(pem) == expected


@given(st.binary(max_size=200))
def test_what_is_no_certificate_is_a_value_error(junk: bytes) -> None:
    framed = ssl.DER_cert_to_PEM_cert(junk).encode() if junk else b""
    for text in (junk, framed):
        with pytest.raises(ValueError, match=r"certificate|Odd|decode|padding|PEM|characters"):
            validities(text)


@pytest.mark.parametrize(
    ("begins", "ends", "level", "said"),
    [
        (-10, -1, "ERROR", "ended on"),
        (1, 10, "ERROR", "is not valid before"),
        (-10, 3, "WARNING", "ends on"),
        (-10, 30, None, ""),
    ],
)
def test_a_certificate_that_is_refused_or_soon_will_be_is_told_and_served(
    tmp_path: Path, begins: int, ends: int, level: str | None, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    chain, key = certificate(NOW + timedelta(days=begins), NOW + timedelta(days=ends))
    (tmp_path / "tls.crt").write_bytes(chain)
    (tmp_path / "tls.key").write_bytes(key)
    files = CertificateFiles(str(tmp_path / "tls.crt"), str(tmp_path / "tls.key"), None)
    files.load()
    assert files.ends_unix_s == (NOW + timedelta(days=ends)).timestamp()
    assert levels(caplog) == ([level] if level else [])
    assert said in caplog.text
    # Once, and not at each handshake.
    assert files.newer() is None
    assert len(caplog.records) == len([level] if level else [])


def test_the_clients_ca_ends_connections_too_and_old_roots_beside_a_good_one_do_not(pki: Pki) -> None:
    chain, key = certificate(NOW - timedelta(days=9), NOW + timedelta(days=90))
    (pki.folder / "own.crt").write_bytes(chain)
    (pki.folder / "own.key").write_bytes(key)
    old = certificate(NOW - timedelta(days=9), NOW - timedelta(days=1), "old")[0]
    good = certificate(NOW - timedelta(days=9), NOW + timedelta(days=40), "good")[0]
    for roots, ends_in in ((old + good, 40), (old, -1)):
        (pki.folder / "ca.crt").write_bytes(roots)
        files = CertificateFiles(*(str(pki.folder / name) for name in ("own.crt", "own.key", "ca.crt")))
        files.load()
        assert files.ends_unix_s == (NOW + timedelta(days=ends_in)).timestamp()


async def test_the_metric_says_when_the_certificate_in_use_ends(serve: Serve, pki: Pki) -> None:
    metrics, credentials = Metrics("tiny"), Credentials()
    metrics.credentials.view = credentials
    assert b"weir_tls_certificate_expiry_timestamp_seconds 0" in metrics.text()
    server_credentials(pki.settings, credentials)
    [made] = x509.load_pem_x509_certificates((pki.folder / "tls.crt").read_bytes())[:1]
    [line] = [
        line
        for line in metrics.text().decode().splitlines()
        if line.startswith("weir_tls_certificate_expiry_timestamp_seconds ")
    ]
    assert float(line.split()[1]) == made.not_valid_after_utc.timestamp()


def test_half_of_tls_is_no_setting() -> None:
    with pytest.raises(ConfigError, match="tls-cert-file and tls-key-file go together"):
        load(env={"WEIR_TLS_CERT_FILE": "/tls.crt"})
    with pytest.raises(ConfigError, match="tls-client-ca-file needs"):
        load(env={"WEIR_TLS_CLIENT_CA_FILE": "/ca.crt"})
