"""grpc.health.v1: what a kubelet, a balancer and an operator read."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from weir.engine.errors import EngineFailedError, QueueFullError
from weir.server.app import App

from tests.contract.decode import refusal
from tests.contract.fake_engine import FakeEngine, FakeProgress

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICE_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
LIVENESS = ("", "liveness")
READINESS = ("readiness", "weir.v1.InferenceService")


class Probe:
    """Asks for the status of every service at once."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.stub = health_pb2_grpc.HealthStub(channel)

    async def statuses(self) -> tuple[list[int], list[int]]:
        listed = (await self.stub.List(health_pb2.HealthListRequest())).statuses
        found = {}
        for service in (*LIVENESS, *READINESS):
            found[service] = (await self.stub.Check(health_pb2.HealthCheckRequest(service=service))).status
            assert listed[service].status == found[service]
        assert len(listed) == len(found)
        return [found[s] for s in LIVENESS], [found[s] for s in READINESS]


@pytest.fixture
def probe(channel: grpc.aio.Channel) -> Probe:
    return Probe(channel)


async def test_nothing_serves_while_the_model_loads_and_all_does_after(
    loading: App, engine: FakeEngine, probe: Probe
) -> None:
    assert await probe.statuses() == ([NOT_SERVING] * 2, [NOT_SERVING] * 2)
    engine.load()
    await loading.lifecycle.changed(0, timeout_s=5)
    assert await probe.statuses() == ([SERVING] * 2, [SERVING] * 2)


async def test_draining_is_alive_but_not_ready(app: App, probe: Probe) -> None:
    app.lifecycle.drain()
    assert await probe.statuses() == ([SERVING] * 2, [NOT_SERVING] * 2)
    app.lifecycle.resume()
    assert await probe.statuses() == ([SERVING] * 2, [SERVING] * 2)


@pytest.mark.usefixtures("app")
class TestProgress:
    @pytest.mark.parametrize(
        ("heartbeat", "status"),
        [
            (FakeProgress(busy=True, step_age_s=60.0), SERVING),
            (FakeProgress(busy=True, step_age_s=60.1), NOT_SERVING),
            (FakeProgress(busy=False, step_age_s=86_400.0), SERVING),
        ],
        ids=["a long step is healthy", "a step older than its bound is not", "idle for a day is healthy"],
    )
    async def test_liveness_means_progress(
        self, engine: FakeEngine, probe: Probe, heartbeat: FakeProgress, status: int
    ) -> None:
        engine.heartbeat = heartbeat
        assert await probe.statuses() == ([status] * 2, [status] * 2)

    async def test_a_full_queue_is_healthy_and_health_is_never_refused(self, engine: FakeEngine, probe: Probe) -> None:
        engine.reserve_error = QueueFullError(1, 0, 1, 1, 1.0)
        engine.set_budget(kv_free_tokens=0, kv_used_tokens=400, queued=1000)
        assert await probe.statuses() == ([SERVING] * 2, [SERVING] * 2)

    async def test_an_unknown_service_is_not_found_by_check_and_unknown_by_watch(self, probe: Probe) -> None:
        refused = await refusal(probe.stub.Check(health_pb2.HealthCheckRequest(service="nope")))
        assert refused.code is grpc.StatusCode.NOT_FOUND
        watch = probe.stub.Watch(health_pb2.HealthCheckRequest(service="nope"))
        assert (await watch.read()).status == SERVICE_UNKNOWN
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await watch.read()


async def test_a_dead_engine_is_dead_before_the_server_has_ended(app: App, engine: FakeEngine, probe: Probe) -> None:
    engine.failed.set_result(EngineFailedError("gone"))
    assert await probe.statuses() == ([NOT_SERVING] * 2, [NOT_SERVING] * 2)


async def test_watch_tells_each_change_once(loading: App, engine: FakeEngine, probe: Probe) -> None:
    watch = probe.stub.Watch(health_pb2.HealthCheckRequest(service="readiness"))
    assert (await watch.read()).status == NOT_SERVING
    engine.load()
    assert (await watch.read()).status == SERVING
    loading.lifecycle.drain()
    assert (await watch.read()).status == NOT_SERVING
    loading.lifecycle.resume()
    assert (await watch.read()).status == SERVING


async def test_a_thousand_watches_do_not_starve_generation(app: App, probe: Probe, client: object) -> None:
    watches = [probe.stub.Watch(health_pb2.HealthCheckRequest(service="")) for _ in range(1000)]
    for watch in watches:
        assert (await watch.read()).status == SERVING
    async with asyncio.timeout(10):
        assert (await client.complete("ok", max_tokens=2)).text == "ok"  # type: ignore[attr-defined]


async def test_the_admin_port_answers_health_too(app: App, admin_channel: grpc.aio.Channel) -> None:
    assert await Probe(admin_channel).statuses() == ([SERVING] * 2, [SERVING] * 2)
