"""The bound on waiting work, in requests and in tokens: counted when a request arrives, before any work on it.

A ticket is room in the queue. It is taken before the prompt is tokenised, so that a burst cannot overshoot the bound
meanwhile, and given back when the request is admitted or ends, whichever comes first. What the engine can start at once
does not wait: such a ticket is counted against the free slots and the free KV tokens instead.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from weir.engine.errors import QueueFullError
from weir.engine.records import BudgetSnapshot, QueueOutlook
from weir.engine.tenants import Tenant, Tenants

_SHORTEST_RETRY_S = 0.1
_LONGEST_RETRY_S = 600.0
_log = logging.getLogger(__name__)


class Ticket:
    """Room for one request of at most `tokens` tokens. starts: it needs none, for the engine can start it at once."""

    __slots__ = ("_gate", "starts", "tenant", "tokens")

    def __init__(self, gate: QueueGate, tokens: int, tenant: str, starts: bool) -> None:
        self._gate: QueueGate | None = gate
        self.tokens = tokens
        self.tenant = tenant
        self.starts = starts

    def resize(self, tokens: int) -> None:
        """The prompt is tokenised: hold what it really needs."""
        if self._gate is not None:
            self._gate._add(self, 0, tokens - self.tokens)
            self.tokens = tokens

    def release(self) -> None:
        """Give the room back. Idempotent."""
        gate, self._gate = self._gate, None
        if gate is not None:
            gate._add(self, -1, -self.tokens)


class QueueGate:
    """Owns the counts. Lives on one thread: the event loop of the process that accepts requests.

    Logs when it begins to refuse with a queue that is more than half full, and when the queue is down to half again:
    one pair of lines for an overload, however often the queue fills up meanwhile.
    """

    def __init__(
        self,
        max_requests: int,
        max_tokens: int,
        tenants: Tenants,
        budget: Callable[[], BudgetSnapshot],
        outlook: Callable[[], QueueOutlook],
        max_running: int,
    ) -> None:
        self._max_requests = max_requests
        self._max_tokens = max_tokens
        self._max_running = max_running
        self._tenants = tenants
        self._budget = budget
        self._outlook = outlook
        self._by_tenant: dict[str, tuple[int, int]] = {}
        self._waiting = self._starting = (0, 0)
        self._overloaded = False
        self._refused = 0

    @property
    def requests(self) -> int:
        """Tickets that are out."""
        return self._waiting[0] + self._starting[0]

    @property
    def tokens(self) -> int:
        """What they are for."""
        return self._waiting[1] + self._starting[1]

    def reserve(self, tokens: int, tenant: str) -> Ticket:
        """Take room, or raise QueueFullError. An empty queue takes any one request, however large."""
        known = self._tenants.get(tenant)
        ticket = Ticket(self, tokens, known.name, self._starts_at_once(tokens))
        if not ticket.starts:
            self._check_bounds(tokens, known)
        self._add(ticket, 1, tokens)
        return ticket

    def _starts_at_once(self, tokens: int) -> bool:
        """Whether the engine's last word leaves a slot and KV tokens for it, beside those that are on their way."""
        budget, (requests, held) = self._budget(), self._starting
        free_tokens = budget.kv_total_tokens - max(budget.kv_reserved_peak_tokens, budget.kv_used_tokens)
        return self._waiting[0] == 0 and budget.running + requests < self._max_running and held + tokens <= free_tokens

    def _check_bounds(self, tokens: int, known: Tenant) -> None:
        try:
            self._check("the queue", tokens, self._waiting, self._max_requests, self._max_tokens)
        except QueueFullError:
            self._count_refusal()
            raise
        if known.queue_share < 1.0:
            share, held = known.queue_share, self._by_tenant.get(known.name, (0, 0))
            most = max(1, int(share * self._max_requests))
            self._check(
                f"the queue of tenant {known.name}", tokens, held, most, int(share * self._max_tokens), known.name
            )

    def _check(
        self,
        subject: str,
        tokens: int,
        held: tuple[int, int],
        most_requests: int,
        most_tokens: int,
        tenant: str | None = None,
    ) -> None:
        requests, held_tokens = held
        if requests + 1 <= most_requests and (requests == 0 or held_tokens + tokens <= most_tokens):
            return
        # An empty queue takes any one request, so no more than what is held has to leave.
        excess = min(held_tokens, held_tokens + tokens - most_tokens)
        wait_s = self._outlook().room_in_s(time.monotonic(), max(1, requests + 1 - most_requests), excess, tenant)
        budget = self._budget()
        raise QueueFullError(
            needed_tokens=tokens,
            free_tokens=budget.kv_free_tokens + budget.kv_cached_tokens,
            queued_tokens=held_tokens,
            queued_requests=requests,
            retry_after_s=min(max(wait_s, _SHORTEST_RETRY_S), _LONGEST_RETRY_S),
            subject=subject,
        )

    def _count_refusal(self) -> None:
        self._refused += 1
        if not self._overloaded and not self._has_room():
            self._overloaded = True
            _log.warning("queue full, refusing", extra={"requests": self._waiting[0], "tokens": self._waiting[1]})

    def _has_room(self) -> bool:
        return 2 * self._waiting[0] <= self._max_requests and 2 * self._waiting[1] <= self._max_tokens

    def _add(self, ticket: Ticket, requests: int, tokens: int) -> None:
        if ticket.starts:
            self._starting = (self._starting[0] + requests, self._starting[1] + tokens)
            return
        self._waiting = (self._waiting[0] + requests, self._waiting[1] + tokens)
        held = self._by_tenant.get(ticket.tenant, (0, 0))
        self._by_tenant[ticket.tenant] = (held[0] + requests, held[1] + tokens)
        if self._overloaded and self._has_room():
            _log.info("queue has room, accepting again", extra={"refused": self._refused})
            self._overloaded, self._refused = False, 0
