"""The engine's admin socket with a budget that the test sets."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
from weir.v1 import admin_pb2, admin_pb2_grpc, budget_pb2, budget_pb2_grpc


class FakeEngine(budget_pb2_grpc.BudgetServiceServicer, admin_pb2_grpc.AdminServiceServicer):
    """Answers with what the test wrote into its fields."""

    def __init__(self) -> None:
        self.running = 0
        self.queued = 0
        self.used = 0
        self.cached = 0
        self.wait_s = 0.0
        self.drained = threading.Event()
        self.address = ""

    def GetBudget(  # noqa: N802
        self, request: budget_pb2.GetBudgetRequest, context: grpc.ServicerContext
    ) -> budget_pb2.GetBudgetResponse:
        return budget_pb2.GetBudgetResponse(
            budget=budget_pb2.Budget(
                kv_total_tokens=1000,
                kv_used_tokens=self.used,
                kv_cached_tokens=self.cached,
                kv_free_tokens=1000 - self.used - self.cached,
                running_requests=self.running,
                queued_requests=self.queued,
                estimated_wait_s=self.wait_s,
            )
        )

    def Drain(  # noqa: N802
        self, request: admin_pb2.DrainRequest, context: grpc.ServicerContext
    ) -> admin_pb2.DrainResponse:
        self.drained.set()
        return admin_pb2.DrainResponse(in_flight_requests=self.running + self.queued)


@contextmanager
def serving(folder: Path) -> Iterator[FakeEngine]:
    """A fake engine on a unix socket in `folder`."""
    engine = FakeEngine()
    engine.address = f"unix:{folder / 'admin.sock'}"
    server = grpc.server(ThreadPoolExecutor(2))
    budget_pb2_grpc.add_BudgetServiceServicer_to_server(engine, server)
    admin_pb2_grpc.add_AdminServiceServicer_to_server(engine, server)
    server.add_insecure_port(engine.address)
    server.start()
    try:
        yield engine
    finally:
        server.stop(0).wait()
