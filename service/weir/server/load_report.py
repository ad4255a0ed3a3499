"""ORCA load reports: how full this server is, told to load balancers in a trailer of every RPC and on a stream."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable

import grpc

from weir.orca.load_report_pb2 import OrcaLoadReport
from weir.orca.service_pb2 import OrcaLoadReportRequest
from weir.server.engine_api import Engine
from weir.server.lifecycle import Lifecycle
from weir.server.watches import Watches, seconds_within

TRAILER_KEY = "endpoint-load-metrics-bin"
SERVICE = "xds.service.orca.v3.OpenRcaService"
# Weighted round robin ignores a report whose rate or utilisation is 0, and with it an idle server.
MIN_UTILIZATION = 0.01
MIN_RATE = 0.01
RATE_WINDOW_S = 10.0
MIN_INTERVAL_S = 1.0
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

    def __init__(self, engine: Engine, lifecycle: Lifecycle, watches: Watches) -> None:
        self._engine = engine
        self._lifecycle = lifecycle
        self._watches = watches
        self._requests = RateMeter(RATE_WINDOW_S)
        self._last_request_at = 0.0

    def count_request(self) -> None:
        """A generation arrived."""
        self._requests.add()
        self._last_request_at = time.monotonic()

    async def quiet(self, for_s: float, timeout_s: float) -> None:
        """Wait until no generation has arrived for a while, at most `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while (wait_s := min(deadline, self._last_request_at + for_s) - time.monotonic()) > 0:  # noqa: ASYNC110
            await asyncio.sleep(wait_s)

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

    def add_to(self, server: grpc.aio.Server) -> None:
        """Offer OpenRcaService, for balancers that cannot wait for the end of a long stream."""
        stream = grpc.unary_stream_rpc_method_handler(
            self._stream_core_metrics,
            request_deserializer=OrcaLoadReportRequest.FromString,
            response_serializer=OrcaLoadReport.SerializeToString,
        )
        methods = {"StreamCoreMetrics": stream}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
        server.add_registered_method_handlers(SERVICE, methods)

    async def _stream_core_metrics(self, request: OrcaLoadReportRequest, context: grpc.aio.ServicerContext) -> None:
        # Not by way of a timedelta: the seconds may be more than one holds.
        asked_s = request.report_interval.seconds + request.report_interval.nanos * 1e-9
        interval_s = seconds_within(asked_s, MIN_INTERVAL_S, DEFAULT_INTERVAL_S)
        async with self._watches.open(context) as tell:
            while True:
                await tell(self.report())
                if await self._lifecycle.stopping(interval_s):
                    return
