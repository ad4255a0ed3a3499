"""Metrics of the files that say who may connect: what an operator must know before clients tell."""

from __future__ import annotations

from typing import Protocol

from weir.telemetry.series import Family, gauge


class CredentialsView(Protocol):
    """What a scrape reads of them."""

    @property
    def tokens_unusable(self) -> bool: ...

    @property
    def certificate_ends_unix_s(self) -> float: ...


class CredentialMetrics:
    """Reads the files that the server watches, once there are any."""

    def __init__(self) -> None:
        self.view: CredentialsView | None = None

    def families(self) -> list[Family]:
        """Every series of the credentials."""
        return [
            gauge(
                "weir_auth_tokens_unusable",
                "1 while the token file holds no token or cannot be read; after auth_tokens_grace no token is good.",
                lambda: int(self.view is not None and self.view.tokens_unusable),
            ),
            gauge(
                "weir_tls_certificate_expiry_timestamp_seconds",
                "When the first of the server's certificates, or of its clients' CA, ends; 0 without TLS.",
                lambda: self.view.certificate_ends_unix_s if self.view is not None else 0.0,
            ),
        ]
