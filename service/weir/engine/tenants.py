"""Who a request belongs to, and what part of the service that tenant may have."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from weir.config import EngineSettings


@dataclass(frozen=True, slots=True)
class Tenant:
    """A tenant's part: `weight` in the order of service, and the largest share of the KV pool and of the queue."""

    name: str
    weight: float = 1.0
    kv_share: float = 1.0
    queue_share: float = 1.0


class Tenants:
    """The configured tenants; every other name shares the one called "default".

    shares_cache: they find each other's prefixes in the prefix cache.
    """

    def __init__(self, tenants: Iterable[Tenant] = (), shares_cache: bool = False) -> None:
        self._shares_cache = shares_cache
        self._by_name = {tenant.name: tenant for tenant in tenants}
        self._default = self._by_name.get("default", Tenant("default"))

    def get(self, name: str) -> Tenant:
        """The tenant of this name, or the shared default."""
        return self._by_name.get(name, self._default)

    def cache_part(self, name: str) -> str:
        """Which part of the prefix cache a tenant uses: its own, or the one of all."""
        return "" if self._shares_cache else self.get(name).name

    def names(self) -> tuple[str, ...]:
        """Every tenant that can be told apart: a closed set, fit for metric labels."""
        return tuple(sorted({*self._by_name, self._default.name}))


def tenants_of(settings: EngineSettings) -> Tenants:
    """The tenants that the settings name."""
    return Tenants(
        (Tenant(name, t.weight, t.kv_share, t.queue_share) for name, t in settings.tenants.items()),
        settings.prefix_cache_sharing == "all",
    )
