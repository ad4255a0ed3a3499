"""Which services are offered on which port."""

from __future__ import annotations

from collections.abc import Callable

import grpc
from grpc_channelz.v1 import channelz
from grpc_health.v1 import health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from weir.config import Settings
from weir.server import budget, inference, load_report
from weir.server.admin import AdminService
from weir.server.backlog import Backlogs
from weir.server.budget import BudgetService
from weir.server.engine_api import Engine
from weir.server.grpc_server import make_server
from weir.server.health import HealthService
from weir.server.inference import InferenceService
from weir.server.lifecycle import Lifecycle
from weir.server.limits import MessageLimits
from weir.server.live import LiveRequests
from weir.server.load_report import LoadReporter
from weir.server.messages import MessageParser
from weir.server.observer import Observer
from weir.server.options import server_options
from weir.server.prompts import PromptEncoder
from weir.server.pulse import Pulse
from weir.server.rpc import RpcInterceptor
from weir.server.security import Credentials
from weir.server.tokens import Callers, token_file
from weir.server.watches import MAX_PER_CONNECTION, Watches
from weir.v1 import admin_pb2_grpc, budget_pb2_grpc, inference_pb2_grpc

REFLECTED = (
    inference.SERVICE,
    budget.SERVICE,
    load_report.SERVICE,
    "grpc.health.v1.Health",
    reflection.SERVICE_NAME,
)


class Services:
    """The servicers of one process, and the gRPC servers that offer them; none is bound to a port yet."""

    def __init__(
        self,
        settings: Settings,
        engine: Engine,
        lifecycle: Lifecycle,
        live: LiveRequests,
        prompts: Callable[[], PromptEncoder],
        limits: Callable[[], MessageLimits | None],
        observer: Observer,
        backlogs: Backlogs,
        max_connections: int,
    ) -> None:
        self._settings = settings.server
        self.credentials = Credentials(token_file(settings.server, settings.engine.tenants))
        self._callers = Callers(self.credentials.tokens)
        self._max_connections = max_connections
        self._limits = limits
        self._observer = observer
        pulse = Pulse(engine, settings.engine.stall_timeout_s)
        watches = Watches(backlogs, self._settings.unread_timeout_s, self._settings.max_watches, MAX_PER_CONNECTION)
        self.load = LoadReporter(engine, lifecycle, watches)
        self._inference = InferenceService(
            engine,
            prompts,
            lifecycle,
            live,
            self._callers,
            observer,
            pulse,
            backlogs,
            self._settings.max_message_bytes,
        )
        self._budget = BudgetService(engine, lifecycle, watches)
        self._health = HealthService(lifecycle, pulse, Watches(backlogs, self._settings.unread_timeout_s))
        self._admin = AdminService(engine, lifecycle, live, pulse)

    def public(self) -> grpc.aio.Server:
        """Everything that clients, balancers and tools use."""
        # Tokens first: what they refuse must not reach the handlers.
        server = self._server(*self._callers.interceptors())
        inference_pb2_grpc.add_InferenceServiceServicer_to_server(self._inference, server)  # type: ignore[no-untyped-call]
        budget_pb2_grpc.add_BudgetServiceServicer_to_server(self._budget, server)  # type: ignore[no-untyped-call]
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        self.load.add_to(server)
        reflection.enable_server_reflection(REFLECTED, server)
        return server

    def admin(self) -> grpc.aio.Server:
        """What the operator and the sidecar use."""
        server = self._server()
        admin_pb2_grpc.add_AdminServiceServicer_to_server(self._admin, server)  # type: ignore[no-untyped-call]
        budget_pb2_grpc.add_BudgetServiceServicer_to_server(self._budget, server)  # type: ignore[no-untyped-call]
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        # It names every client by its address.
        channelz.add_channelz_servicer(server)
        return server

    def probes(self) -> grpc.aio.Server:
        """Health alone."""
        server = self._server()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        return server

    def _server(self, *first: grpc.aio.ServerInterceptor) -> grpc.aio.Server:
        settings = self._settings
        rpc = RpcInterceptor(self.load, MessageParser(self._limits), self._observer, settings)
        return make_server([*first, rpc], server_options(settings, self._max_connections))
