"""ORCA load reports: how full this server is, told to load balancers in a trailer of every RPC and on a stream."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import grpc

from weir.orca.load_report_pb2 import OrcaLoadReport
from weir.orca.service_pb2 import OrcaLoadReportRequest
from weir.server.engine_api import Engine
from weir.server.lifecycle import Lifecycle

TRAILER_KEY = "endpoint-load-metrics-bin"
SERVICE = "xds.service.orca.v3.OpenRcaService"
# Weighted round robin ignores a report whose rate or utilisation is 0, and with it an idle server.
MIN_UTILIZATION = 0.01
MIN_RATE = 0.01
RATE_WINDOW_S = 10.0
MIN_INTERVAL_S = 0.1
DEFAULT_INTERVAL_S = 1.0


class RateMeter:
    """Events per second, as an exponentially decaying average over about `window_s`."""

    def __init__(self, window_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._window_s = window_s
        self._clock = clock
        self._rate = 0.0
        self._at = clock()

    def add(self) -> None:
        """Count one event."""
        self._rate = self.rate() + 1 / self._window_s
        self._at = self._clock()

    def rate(self) -> float:
        """Events per second now."""
        return self._rate * math.exp((self._at - self._clock()) / self._window_s)


class LoadReporter:
    """Makes the report from the engine's last snapshot; cheap enough for every RPC."""

    def __init__(self, engine: Engine, lifecycle: Lifecycle) -> None:
        self._engine = engine
        self._lifecycle = lifecycle
        self._requests = RateMeter(RATE_WINDOW_S)

    def count_request(self) -> None:
        """A generation arrived."""
        self._requests.add()

    def report(self) -> OrcaLoadReport:
        """The load now. Demand above what the KV pool holds makes the utilisation exceed 1."""
        report = OrcaLoadReport(
            application_utilization=MIN_UTILIZATION, rps_fractional=max(MIN_RATE, self._requests.rate())
        )
        if not self._lifecycle.is_loaded:
            return report
        info, budget = self._engine.info, self._engine.snapshot()
        demand = (budget.kv_used_tokens + budget.queued_tokens) / info.kv_total_tokens
        report.application_utilization = max(MIN_UTILIZATION, demand, budget.running / info.max_running)
        report.named_metrics["kv_cache_utilization"] = budget.kv_used_tokens / info.kv_total_tokens
        report.named_metrics["max_token_capacity"] = info.kv_total_tokens
        return report

    def trailer(self) -> tuple[str, bytes]:
        """The report as a trailing metadata entry."""
        return TRAILER_KEY, self.report().SerializeToString()

    def handler(self) -> grpc.GenericRpcHandler:
        """OpenRcaService, for balancers that cannot wait for the end of a long stream."""
        stream = grpc.unary_stream_rpc_method_handler(
            self._stream_core_metrics,
            request_deserializer=OrcaLoadReportRequest.FromString,
            response_serializer=OrcaLoadReport.SerializeToString,
        )
        return grpc.method_handlers_generic_handler(SERVICE, {"StreamCoreMetrics": stream})

    async def _stream_core_metrics(self, request: OrcaLoadReportRequest, context: grpc.aio.ServicerContext) -> None:
        asked_s = request.report_interval.ToTimedelta().total_seconds() or DEFAULT_INTERVAL_S
        while True:
            await context.write(self.report())
            if await self._lifecycle.stopping(max(MIN_INTERVAL_S, asked_s)):
                return
