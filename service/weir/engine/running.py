"""The requests that hold KV blocks. Starting one takes blocks, stopping it gives every one back, once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from weir.engine.blocks import BlockPool
from weir.engine.budget import blocks_needed, shareable_blocks
from weir.engine.request import Choice, GenerateRequest, Request
from weir.engine.tenants import Tenants


class RunningSet:
    """Running requests in order of admission, and what each tenant's may come to hold."""

    def __init__(self, pool: BlockPool, tenants: Tenants) -> None:
        self._pool = pool
        self._tenants = tenants
        self._requests: list[Request] = []
        self._tenant_blocks: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)

    @property
    def num_choices(self) -> int:
        """Choices that have not finished."""
        return sum(len(request.live) for request in self._requests)

    def blocks_needed(self, spec: GenerateRequest) -> int:
        """Blocks this request holds when all its choices reach max_tokens."""
        return blocks_needed(len(spec.prompt_token_ids), spec.params.max_tokens, spec.n, self._pool.block_size)

    def is_shared_out(self, spec: GenerateRequest) -> bool:
        """Whether its tenant may hold a part of the pool only."""
        return self._tenants.get(spec.tenant).kv_share < 1.0

    def tenant_allows(self, spec: GenerateRequest, beside: Iterable[GenerateRequest] | None = None) -> bool:
        """Whether the tenant's share of the pool has room for this request's maximum, beside others or what runs."""
        if not self.is_shared_out(spec):
            return True
        tenant = self._tenants.get(spec.tenant)
        if beside is None:
            held = self._tenant_blocks.get(tenant.name, 0)
        else:
            held = sum(self.blocks_needed(other) for other in beside if self._tenants.get(other.tenant) is tenant)
        return held + self.blocks_needed(spec) <= int(tenant.kv_share * self._pool.num_blocks)

    def start(self, request: Request, hits: Sequence[int]) -> None:
        """Run a request whose leading choice starts behind the cached blocks `hits`; its siblings wait."""
        leader, *siblings = request.live
        self._pool.hold(hits)
        leader.blocks = list(hits)
        leader.num_computed = len(hits) * self._pool.block_size
        for sibling in siblings:
            sibling.parked = True
        self._requests.append(request)
        self._count(request, +1)
        self.unpark(request)

    def unpark(self, request: Request) -> None:
        """Let parked choices share the prompt's full blocks once the leader's steps have covered them."""
        shared = shareable_blocks(len(request.spec.prompt_token_ids), self._pool.block_size)
        leader = next((choice for choice in request.live if not choice.parked), None)
        if leader is None or leader.num_computed < shared * self._pool.block_size:
            return
        for choice in request.live:
            if choice.parked:
                choice.parked = False
                choice.blocks = leader.blocks[:shared]
                choice.num_computed = shared * self._pool.block_size
                self._pool.hold(choice.blocks)

    def stop(self, request: Request) -> None:
        """Take a request off; every block it holds goes back."""
        self._requests.remove(request)
        for choice in request.choices:
            self.release(choice)
        self._count(request, -1)

    def release(self, choice: Choice) -> None:
        """Give a choice's blocks back. Idempotent."""
        blocks, choice.blocks = choice.blocks, []
        choice.num_computed = 0
        choice.parked = False
        self._pool.release(blocks)

    def victim(self, spared: Sequence[Request], lower_than: int = -1) -> Request | None:
        """Whom to preempt: lowest priority, then latest admitted, if it made progress since it was last preempted.

        spared: never these. lower_than: only priorities below this one (larger numbers).
        """
        eligible = [
            (request.spec.priority, place, request)
            for place, request in enumerate(self._requests)
            if request.spec.priority > lower_than
            and request not in spared
            and request.num_output > request.preempted_at_output
        ]
        return max(eligible, key=lambda item: item[:2])[2] if eligible else None

    def _count(self, request: Request, sign: int) -> None:
        tenant = self._tenants.get(request.spec.tenant).name
        held = self._tenant_blocks.get(tenant, 0) + sign * self.blocks_needed(request.spec)
        self._tenant_blocks[tenant] = held
