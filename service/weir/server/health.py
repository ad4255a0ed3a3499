"""grpc.health.v1 from a cached heartbeat: a saturated server is healthy, a hung one is not, an idle one is.

`""` and `liveness` say that the engine makes progress; `readiness` and the inference service say that new work is
taken. While the model loads, all say NOT_SERVING: a startup probe, not liveness, decides how long that may take.
"""

from __future__ import annotations

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from weir.server.errors import StatusError
from weir.server.inference import SERVICE as INFERENCE_SERVICE
from weir.server.lifecycle import Lifecycle, Phase
from weir.server.pulse import Pulse
from weir.server.watches import Watches

LIVENESS_SERVICES = ("", "liveness")
READINESS_SERVICES = ("readiness", INFERENCE_SERVICE)
WATCH_INTERVAL_S = 1.0

_Status = health_pb2.HealthCheckResponse.ServingStatus


class HealthService(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    """Answers from memory: no queue, no engine call, no wait."""

    def __init__(self, lifecycle: Lifecycle, pulse: Pulse, watches: Watches) -> None:
        self._lifecycle = lifecycle
        self._pulse = pulse
        self._watches = watches

    async def Check(
        self, request: health_pb2.HealthCheckRequest, context: grpc.aio.ServicerContext
    ) -> health_pb2.HealthCheckResponse:
        """The status now. NOT_FOUND for an unknown service."""
        status = self.status(request.service)
        if status == _Status.SERVICE_UNKNOWN:
            raise StatusError(grpc.StatusCode.NOT_FOUND, f"no such service: {request.service!r}")
        return health_pb2.HealthCheckResponse(status=status)

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: grpc.aio.ServicerContext) -> None:
        """The status now and at each change, to the end of the server. An unknown service is told so, and may wait."""
        told = None
        async with self._watches.open(context) as tell:
            while True:
                version = self._lifecycle.version
                status = self.status(request.service)
                if status != told:
                    await tell(health_pb2.HealthCheckResponse(status=status))
                    told = status
                if self._lifecycle.phase is Phase.STOPPING:
                    return
                await self._lifecycle.changed(version, WATCH_INTERVAL_S)

    async def List(
        self, request: health_pb2.HealthListRequest, context: grpc.aio.ServicerContext
    ) -> health_pb2.HealthListResponse:
        """The status of every service."""
        return health_pb2.HealthListResponse(
            statuses={
                service: health_pb2.HealthCheckResponse(status=self.status(service))
                for service in (*LIVENESS_SERVICES, *READINESS_SERVICES)
            }
        )

    def status(self, service: str) -> health_pb2.HealthCheckResponse.ServingStatus:
        """SERVING, NOT_SERVING, or SERVICE_UNKNOWN."""
        if service in LIVENESS_SERVICES:
            serving = self._lifecycle.phase is not Phase.STOPPING and self._makes_progress()
        elif service in READINESS_SERVICES:
            serving = self._lifecycle.phase is Phase.READY and self._makes_progress()
        else:
            return _Status.SERVICE_UNKNOWN
        return _Status.SERVING if serving else _Status.NOT_SERVING

    def _makes_progress(self) -> bool:
        return self._lifecycle.is_loaded and self._pulse.beats()
