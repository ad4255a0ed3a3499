"""Whose prompt is computed next, of those that hold their KV budget: priority, tenant weight, the least work left.

Admission's promise holds in any order (see demands.py), so an urgent prompt need not wait for the long ones before it.
Nobody starves: one step in `OLDEST_EVERY` serves the prompt that was admitted first.
"""

from __future__ import annotations

from collections.abc import Sequence

from weir.engine.request import Choice
from weir.engine.tenants import Tenants

OLDEST_EVERY = 8


class PrefillOrder:
    """Counts what each tenant was served: start-time fair queueing over prompt tokens, by weight."""

    def __init__(self, tenants: Tenants) -> None:
        self._tenants = tenants
        self._served: dict[str, float] = {}  # prompt tokens over weight, of the tenants that have prompts to compute
        self._turn = 0

    def sort(self, choices: Sequence[Choice]) -> list[Choice]:
        """The order of this step. choices: all that have more than one token to compute, in order of admission."""
        self._forget_all_but({self._tenants.get(choice.request.spec.tenant).name for choice in choices})
        ordered = sorted(choices, key=self._urgency)
        self._turn = (self._turn + 1) % OLDEST_EVERY if len(choices) > 1 else 0
        if len(choices) > 1 and self._turn == 0:
            ordered.remove(choices[0])
            ordered.insert(0, choices[0])
        return ordered

    def count(self, choice: Choice, tokens: int) -> None:
        """This many of its tokens are computed in this step."""
        tenant = self._tenants.get(choice.request.spec.tenant)
        self._served[tenant.name] += tokens / tenant.weight

    def _urgency(self, choice: Choice) -> tuple[int, float, int]:
        spec = choice.request.spec
        return spec.priority, self._served[self._tenants.get(spec.tenant).name], choice.pending

    def _forget_all_but(self, present: set[str]) -> None:
        """A tenant that comes (back) begins where the least served one is: no credit for having been away."""
        known = {name: served for name, served in self._served.items() if name in present}
        start = min(known.values(), default=0.0)
        self._served = {name: known.get(name, start) for name in present}
