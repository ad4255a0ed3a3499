"""AdminService: drain, resume, flush; reachable from this machine (or pod) only."""

from __future__ import annotations

import ipaddress

import grpc

from weir.config import ConfigError
from weir.server.engine_api import Engine
from weir.server.lifecycle import Lifecycle
from weir.server.live import LiveRequests
from weir.server.pulse import Pulse
from weir.server.watches import seconds_within
from weir.v1 import admin_pb2 as pb
from weir.v1 import admin_pb2_grpc


class AdminService(admin_pb2_grpc.AdminServiceServicer):
    """Acts on the lifecycle and the prefix cache."""

    def __init__(self, engine: Engine, lifecycle: Lifecycle, live: LiveRequests, pulse: Pulse) -> None:
        self._engine = engine
        self._lifecycle = lifecycle
        self._live = live
        self._pulse = pulse

    async def Drain(self, request: pb.DrainRequest, context: grpc.aio.ServicerContext) -> pb.DrainResponse:
        """Take no new work, and wait as long as asked for what is in flight."""
        self._lifecycle.drain()
        await self._live.wait_empty(seconds_within(request.wait_s, lowest_s=0.0, default_s=0.0))
        return pb.DrainResponse(in_flight_requests=len(self._live))

    async def Resume(self, request: pb.ResumeRequest, context: grpc.aio.ServicerContext) -> pb.ResumeResponse:
        """Take work again."""
        self._lifecycle.resume()
        return pb.ResumeResponse()

    async def FlushPrefixCache(
        self, request: pb.FlushPrefixCacheRequest, context: grpc.aio.ServicerContext
    ) -> pb.FlushPrefixCacheResponse:
        """Forget unused prefixes."""
        self._lifecycle.check_loaded()
        self._pulse.check()
        return pb.FlushPrefixCacheResponse(flushed_blocks=await self._engine.flush_prefix_cache())


def check_address(address: str) -> str:
    """Return `address` if only this machine can reach it: a unix socket, or a loopback host. Raises ConfigError."""
    if address.startswith("unix:"):
        return address
    host, separator, port = address.rpartition(":")
    if not separator or not port.isdecimal():
        raise ConfigError(f"admin-address: {address!r} is neither HOST:PORT nor unix:/path")
    if host != "localhost" and not _is_loopback(host.strip("[]")):
        raise ConfigError(f"admin-address: {host!r} is not a loopback address; use 127.0.0.1, [::1] or unix:/path")
    return address


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
