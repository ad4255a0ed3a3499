"""The bound on waiting work, in requests and in tokens: counted when a request arrives, before any work on it.

A ticket is room in the queue. It is taken before the prompt is tokenised, so that a burst cannot overshoot the bound
meanwhile, and given back when the request is admitted or ends, whichever comes first.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from weir.engine.errors import QueueFullError
from weir.engine.records import BudgetSnapshot
from weir.engine.tenants import Tenants

_SHORTEST_RETRY_S = 0.1
_LONGEST_RETRY_S = 60.0
_log = logging.getLogger(__name__)


class Ticket:
    """Room for one request of at most `tokens` tokens."""

    __slots__ = ("_gate", "tenant", "tokens")

    def __init__(self, gate: QueueGate, tokens: int, tenant: str) -> None:
        self._gate: QueueGate | None = gate
        self.tokens = tokens
        self.tenant = tenant

    def resize(self, tokens: int) -> None:
        """The prompt is tokenised: hold what it really needs."""
        if self._gate is not None:
            self._gate._add(self.tenant, 0, tokens - self.tokens)
            self.tokens = tokens

    def release(self) -> None:
        """Give the room back. Idempotent."""
        gate, self._gate = self._gate, None
        if gate is not None:
            gate._add(self.tenant, -1, -self.tokens)


class QueueGate:
    """Owns the counts. Lives on one thread: the event loop of the process that accepts requests.

    Logs when it begins to refuse with a queue that is more than half full, and when the queue is down to half again:
    one pair of lines for an overload, however often the queue fills up meanwhile.
    """

    def __init__(
        self, max_requests: int, max_tokens: int, tenants: Tenants, budget: Callable[[], BudgetSnapshot]
    ) -> None:
        self._max_requests = max_requests
        self._max_tokens = max_tokens
        self._tenants = tenants
        self._budget = budget
        self._by_tenant: dict[str, tuple[int, int]] = {}
        self._overloaded = False
        self._refused = 0
        self.requests = 0
        self.tokens = 0

    def reserve(self, tokens: int, tenant: str) -> Ticket:
        """Take room, or raise QueueFullError. An empty queue takes any one request, however large."""
        known = self._tenants.get(tenant)
        requests, held = self._by_tenant.get(known.name, (0, 0))
        try:
            self._check("the queue", tokens, self.requests, self.tokens, self._max_requests, self._max_tokens)
        except QueueFullError:
            self._count_refusal()
            raise
        if known.queue_share < 1.0:
            share = known.queue_share
            most = max(1, int(share * self._max_requests))
            self._check(
                f"the queue of tenant {known.name}", tokens, requests, held, most, int(share * self._max_tokens)
            )
        self._add(known.name, 1, tokens)
        return Ticket(self, tokens, known.name)

    def _check(self, subject: str, tokens: int, requests: int, held: int, most_requests: int, most_tokens: int) -> None:
        if requests + 1 <= most_requests and (requests == 0 or held + tokens <= most_tokens):
            return
        budget = self._budget()
        wait = budget.estimated_wait_s * min(1.0, tokens / max(1, held))
        raise QueueFullError(
            needed_tokens=tokens,
            free_tokens=budget.kv_free_tokens + budget.kv_cached_tokens,
            queued_tokens=held,
            queued_requests=requests,
            retry_after_s=min(max(wait, _SHORTEST_RETRY_S), _LONGEST_RETRY_S),
            subject=subject,
        )

    def _count_refusal(self) -> None:
        self._refused += 1
        if not self._overloaded and not self._has_room():
            self._overloaded = True
            _log.warning("queue full, refusing", extra={"requests": self.requests, "tokens": self.tokens})

    def _has_room(self) -> bool:
        return 2 * self.requests <= self._max_requests and 2 * self.tokens <= self._max_tokens

    def _add(self, tenant: str, requests: int, tokens: int) -> None:
        self.requests += requests
        self.tokens += tokens
        held = self._by_tenant.get(tenant, (0, 0))
        self._by_tenant[tenant] = (held[0] + requests, held[1] + tokens)
        if self._overloaded and self._has_room():
            _log.info("queue has room, accepting again", extra={"refused": self._refused})
            self._overloaded, self._refused = False, 0
