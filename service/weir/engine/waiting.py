"""The waiting queue: who is tried next, and who may not be passed any more.

Order: requests that are due, oldest first; then by priority; within a priority those that were preempted, then the
tenants' fair share, then first come first served. A request is due when it was passed `bypass_limit` times, or has
waited `bypass_age` seconds. A preempted request, whose stream has begun, goes before every due one of its own or a
lower priority. Nothing may pass a due or a preempted request that does not fit, so the pool drains for it.
A waiting request owns nothing: no block, no reservation.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from weir.engine.request import Request
from weir.engine.tenants import Tenants


@dataclass(slots=True, eq=False)
class Waiting:
    """A request in the queue: since when, its place in the order, and how often it was passed.

    order: priority, fair-share start tag (-1 for a preempted request: first of its priority), entry number.
    """

    request: Request
    since: float
    order: tuple[int, float, int]
    passed: int = 0

    @property
    def tokens(self) -> int:
        """Prompt and output tokens this request may still bring."""
        return self.request.spec.most_tokens

    @property
    def is_preempted(self) -> bool:
        """Whether it ran before and waits to be resumed."""
        return self.order[1] < 0


class WaitingQueue:
    """Requests that wait for KV budget; start-time fair queueing serves tenants by weight within a priority."""

    def __init__(self, tenants: Tenants, bypass_limit: int, bypass_age_s: float) -> None:
        self._tenants = tenants
        self._bypass_limit = bypass_limit
        self._bypass_age_s = bypass_age_s
        self._ordered: list[Waiting] = []
        self._by_id: dict[str, Waiting] = {}  # in order of entry
        self._passed_too_often: dict[str, Waiting] = {}
        self._preempted: dict[str, Waiting] = {}
        self._entries = 0
        self._virtual_time = 0.0
        self._finish_tag: dict[str, float] = {}
        self.tokens = 0

    def __len__(self) -> int:
        return len(self._ordered)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._by_id

    def __iter__(self) -> Iterator[Request]:
        return (waiting.request for waiting in self._by_id.values())

    def oldest_age_s(self, now: float) -> float:
        """Seconds the longest-waiting request has waited; 0 when nobody waits."""
        oldest = next(iter(self._by_id.values()), None)
        return 0.0 if oldest is None else now - oldest.since

    def push(self, request: Request, now: float) -> None:
        """Append a new request."""
        waiting = self.place(request, now)
        self._insert(waiting)
        tenant = self._tenants.get(request.spec.tenant)
        self._finish_tag[tenant.name] = waiting.order[1] + waiting.tokens / tenant.weight

    def push_preempted(self, request: Request, now: float) -> None:
        """Put back a request that lost its blocks; it is tried before all others of its priority."""
        waiting = Waiting(request, now, (request.spec.priority, -1.0, self._entries + 1))
        self._insert(waiting)
        self._preempted[request.request_id] = waiting

    def place(self, request: Request, now: float) -> Waiting:
        """Where a request that arrives now would stand. Changes nothing."""
        tenant = self._tenants.get(request.spec.tenant)
        start = max(self._virtual_time, self._finish_tag.get(tenant.name, 0.0))
        return Waiting(request, now, (request.spec.priority, start, self._entries + 1))

    def candidates(self, now: float) -> Iterator[Waiting]:
        """Requests in the order in which they are tried. Do not change the queue while iterating."""
        due = dict(self._passed_too_often)
        for request_id, waiting in self._by_id.items():
            if now - waiting.since < self._bypass_age_s:
                break
            due[request_id] = waiting
        return _in_order(self._ordered, due.values(), self._preempted.values())

    def order_at(self, entries: Sequence[Waiting], now: float) -> Iterator[Waiting]:
        """The order in which these, sorted by `order`, would be tried at another time."""
        due = [waiting for waiting in entries if self._is_due(waiting, now)]
        return _in_order(entries, due, [waiting for waiting in entries if waiting.is_preempted])

    def may_be_passed(self, waiting: Waiting, now: float) -> bool:
        """Whether later requests may still be admitted although this one does not fit."""
        return not (self._is_due(waiting, now) or waiting.is_preempted)

    def count_pass(self, waiting: Waiting) -> None:
        """A request behind this one was admitted although this one was tried first."""
        waiting.passed += 1
        if waiting.passed >= self._bypass_limit:
            self._passed_too_often[waiting.request.request_id] = waiting

    def remove(self, request_id: str) -> Request | None:
        """Take a request out; None when it is not here."""
        waiting = self._by_id.pop(request_id, None)
        if waiting is None:
            return None
        self._passed_too_often.pop(request_id, None)
        self._preempted.pop(request_id, None)
        del self._ordered[bisect.bisect_left(self._ordered, waiting.order, key=lambda w: w.order)]
        self.tokens -= waiting.tokens
        if not self._ordered:
            self._finish_tag.clear()
            self._virtual_time = 0.0
        return waiting.request

    def admit(self, waiting: Waiting) -> None:
        """Take out a request that was admitted, and move the fair-share clock to it."""
        self._virtual_time = max(self._virtual_time, waiting.order[1])
        self.remove(waiting.request.request_id)

    def _is_due(self, waiting: Waiting, now: float) -> bool:
        return waiting.passed >= self._bypass_limit or now - waiting.since >= self._bypass_age_s

    def _insert(self, waiting: Waiting) -> None:
        self._entries += 1
        bisect.insort(self._ordered, waiting, key=lambda w: w.order)
        self._by_id[waiting.request.request_id] = waiting
        self.tokens += waiting.tokens


def _in_order(ordered: Iterable[Waiting], due: Iterable[Waiting], preempted: Iterable[Waiting]) -> Iterator[Waiting]:
    told: set[str] = set()
    resumed = sorted(preempted, key=lambda w: w.order)
    for next_due in sorted(due, key=lambda w: w.order[2]):
        first = [w for w in resumed if w.order[0] <= next_due.order[0]]
        for waiting in (*first, next_due):
            if waiting.request.request_id not in told:
                told.add(waiting.request.request_id)
                yield waiting
    yield from (w for w in ordered if w.request.request_id not in told)
