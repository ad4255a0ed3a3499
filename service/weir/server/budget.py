"""BudgetService: the KV budget and the queue, now and as they change."""

from __future__ import annotations

import grpc

from weir.engine.records import BudgetSnapshot
from weir.server.engine_api import Engine
from weir.server.lifecycle import Lifecycle
from weir.server.watches import Watches, seconds_within
from weir.v1 import budget_pb2 as pb
from weir.v1 import budget_pb2_grpc

SERVICE = "weir.v1.BudgetService"
DEFAULT_INTERVAL_S = 1.0
MIN_INTERVAL_S = 0.25


class BudgetService(budget_pb2_grpc.BudgetServiceServicer):
    """Reads the engine's last snapshot."""

    def __init__(self, engine: Engine, lifecycle: Lifecycle, watches: Watches) -> None:
        self._engine = engine
        self._lifecycle = lifecycle
        self._watches = watches

    async def GetBudget(self, request: pb.GetBudgetRequest, context: grpc.aio.ServicerContext) -> pb.GetBudgetResponse:
        """The budget now."""
        self._lifecycle.check_loaded()
        return pb.GetBudgetResponse(budget=_message(self._engine.snapshot()))

    async def WatchBudget(self, request: pb.WatchBudgetRequest, context: grpc.aio.ServicerContext) -> None:
        """The budget now and at each change, to the end of the server."""
        self._lifecycle.check_loaded()
        interval_s = seconds_within(request.min_interval_s, MIN_INTERVAL_S, DEFAULT_INTERVAL_S)
        told = None
        async with self._watches.open(context) as tell:
            while True:
                snapshot = self._engine.snapshot()
                if snapshot != told:
                    await tell(pb.WatchBudgetResponse(budget=_message(snapshot)))
                    told = snapshot
                if await self._lifecycle.stopping(interval_s):
                    return


def _message(snapshot: BudgetSnapshot) -> pb.Budget:
    return pb.Budget(
        kv_total_tokens=snapshot.kv_total_tokens,
        kv_free_tokens=snapshot.kv_free_tokens,
        kv_used_tokens=snapshot.kv_used_tokens,
        kv_cached_tokens=snapshot.kv_cached_tokens,
        kv_reserved_peak_tokens=snapshot.kv_reserved_peak_tokens,
        running_requests=snapshot.running,
        queued_requests=snapshot.queued,
        queued_tokens=snapshot.queued_tokens,
        estimated_wait_s=snapshot.estimated_wait_s,
        step=snapshot.step,
        computed_tokens=snapshot.computed_tokens,
        prefix_hit_tokens=snapshot.prefix_hit_tokens,
    )
