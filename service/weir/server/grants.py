"""What bearer tokens are good for: whose calls their holders may make."""

from __future__ import annotations

from dataclasses import dataclass

import grpc

from weir.server.errors import StatusError
from weir.server.metadata import MAX_ID_CHARS, is_valid_id
from weir.token_lines import TokenLine, token_lines

# As a tenant's name in a token file: the token may speak for whichever tenant a call names.
ANY_TENANT = "*"


@dataclass(frozen=True, slots=True)
class Grant:
    """What one token allows. tenant: whose calls; empty: those of no tenant; None: whichever a call names."""

    tenant: str | None

    def tenant_of(self, named: str) -> str:
        """The tenant of a call that names this one, or none (empty). Raises StatusError when it names another."""
        if self.tenant is None:
            return named
        if named and named != self.tenant:
            message = "the token is not for the tenant that x-tenant-id names"
            raise StatusError(grpc.StatusCode.PERMISSION_DENIED, message, reason="TENANT_REFUSED")
        return self.tenant


def read_grants(text: str) -> dict[str, Grant]:
    """The grants of a token file, by token.

    Where a line names a tenant, tokens without one speak for none; where no line does, for any. Raises ValueError,
    which shows no token, for a name that no call could have and for a token that has two.
    """
    lines = token_lines(text)
    unbound = Grant(None if all(line.tenant is None for line in lines) else "")
    grants: dict[str, Grant] = {}
    for line in lines:
        grant = unbound if line.tenant is None else _grant(line, line.tenant)
        if grants.setdefault(line.token, grant) != grant:
            raise ValueError(f"line {line.number}: the token is there before, for another tenant")
    return grants


def _grant(line: TokenLine, tenant: str) -> Grant:
    if not is_valid_id(tenant):
        raise ValueError(f"line {line.number}: a tenant's name is 1 to {MAX_ID_CHARS} printable ASCII characters")
    return Grant(None if tenant == ANY_TENANT else tenant)
