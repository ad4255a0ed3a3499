"""What the sidecar asks the engine over its admin socket. Every call has a short deadline; none of them raises."""

from __future__ import annotations

from dataclasses import dataclass

import grpc

from weir.v1 import admin_pb2, admin_pb2_grpc, budget_pb2, budget_pb2_grpc

CALL_TIMEOUT_S = 1.0


@dataclass(frozen=True, slots=True)
class EngineView:
    """The engine at one moment: requests, and tokens of its KV pool."""

    running: int
    queued: int
    kv_total_tokens: int
    kv_cached_tokens: int
    estimated_wait_s: float

    @property
    def in_flight(self) -> int:
        """Requests that would be lost with the pod."""
        return self.running + self.queued

    @property
    def cached_share(self) -> float:
        """Share of the pool that holds reusable prefixes, 0 to 1: how warm the pod is."""
        return self.kv_cached_tokens / self.kv_total_tokens if self.kv_total_tokens else 0.0


class EngineLink:
    """One channel to the admin address, for as long as the sidecar lives."""

    def __init__(self, address: str) -> None:
        # The engine comes and goes behind the socket; find it again within two seconds.
        options = [("grpc.initial_reconnect_backoff_ms", 200), ("grpc.max_reconnect_backoff_ms", 2000)]
        # It is in this pod, and no proxy can reach it.
        options.append(("grpc.enable_http_proxy", 0))
        self._channel = grpc.insecure_channel(address, options=options)
        self._admin = admin_pb2_grpc.AdminServiceStub(self._channel)  # type: ignore[no-untyped-call]
        self._budget = budget_pb2_grpc.BudgetServiceStub(self._channel)  # type: ignore[no-untyped-call]

    def look(self) -> EngineView | None:
        """The engine now; None while it is not there, loads, or does not answer."""
        try:
            reply = self._budget.GetBudget(budget_pb2.GetBudgetRequest(), timeout=CALL_TIMEOUT_S)
        except grpc.RpcError:
            return None
        budget = reply.budget
        return EngineView(
            running=budget.running_requests,
            queued=budget.queued_requests,
            kv_total_tokens=budget.kv_total_tokens,
            kv_cached_tokens=budget.kv_cached_tokens,
            estimated_wait_s=budget.estimated_wait_s,
        )

    def drain(self) -> int | None:
        """Stop new work; the number of requests still in flight, or None when the engine does not answer."""
        try:
            reply = self._admin.Drain(admin_pb2.DrainRequest(wait_s=0.0), timeout=CALL_TIMEOUT_S)
        except grpc.RpcError:
            return None
        return int(reply.in_flight_requests)

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()
