"""Hours of sidecars against an API server whose versions age, counted in requests."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from weir.sidecar.app import DELETION_COST, KV_READY
from weir.sidecar.metrics import SidecarMetrics

from tests.unit.sidecar.api_server import CUT, ApiServer, Fault
from tests.unit.sidecar.conftest import value
from tests.unit.sidecar.rights import COST_RULES, GATE_RULES
from tests.unit.sidecar.simulation import World, simulated

HOUR_S = 3600.0
MINUTE_S = 60.0


@pytest.fixture
def world() -> Iterator[World]:
    with simulated() as clock:
        yield World(clock)


def gate_of(server: ApiServer) -> str | None:
    return str(server.conditions[KV_READY]["status"]) if KV_READY in server.conditions else None


@pytest.mark.parametrize("gate", [False, True])
@pytest.mark.parametrize("bookmarks", [True, False])
def test_an_idle_hour_is_at_most_twenty_requests(world: World, gate: bool, bookmarks: bool) -> None:
    world.server.rules = GATE_RULES if gate else COST_RULES
    world.server.sends_bookmarks = bookmarks
    world.start(readiness_gate=gate)
    world.clock.pass_until(HOUR_S)
    # Watches of five to ten minutes with a pause between them, and the gate's first condition.
    assert 6 <= len(world.server.of("watch")) <= 12
    assert len(world.server.of("patch")) == (1 if gate else 0)
    assert len(world.network.attempts) <= 20
    assert all(call.query.get("resourceVersion", "0") == "0" for call in world.server.calls)


def test_the_pods_own_version_is_too_old_for_a_watch_after_minutes(world: World) -> None:
    """The ground on which a sidecar that watches from it never rests."""
    version = world.server.pod.tree["metadata"]["resourceVersion"]
    replies = []
    for minute in (1, 10):
        world.clock.pass_until(minute * MINUTE_S)
        target = (
            f"/api/v1/namespaces/llm/pods?watch=true&fieldSelector=metadata.name%3Dweir-0&resourceVersion={version}"
        )
        headers = {"Authorization": "Bearer first"}
        reply = world.server.handle("GET", f"{target}&timeoutSeconds=1", headers, b"")
        assert reply.lines is not None
        replies.append(b"".join(reply.lines))
        assert world.server.pod.tree["metadata"]["resourceVersion"] == version
    assert replies[0] == b""
    assert b'"code": 410' in replies[1]


@pytest.mark.parametrize("as_status", [True, False])
def test_an_hour_of_gone_is_a_request_a_minute_and_one_line_in_the_log(
    world: World, caplog: pytest.LogCaptureFixture, as_status: bool
) -> None:
    gone = b'{"type": "ERROR", "object": {"code": 410, "reason": "Expired", "message": "too old"}}\n'
    fault = Fault("watch", 410) if as_status else Fault("watch", 200, body=gone)
    world.server.faults.extend([fault] * 10_000)
    world.start()
    world.clock.pass_until(HOUR_S)
    assert 50 <= len(world.server.of("watch")) <= 100
    assert len([r for r in caplog.records if r.message.startswith("watch of the pod")]) == 1
    assert value(world.metrics, "weir_sidecar_k8s_api_errors_total", kind="gone") == len(world.server.of("watch"))


@pytest.mark.parametrize("lasts_s", [0.0, 1.0, 20.0])
def test_watches_that_end_early_are_not_begun_in_a_loop(world: World, lasts_s: float) -> None:
    world.server.longest_watch_s = lasts_s
    world.start()
    world.clock.pass_until(HOUR_S)
    assert len(world.server.of("watch")) <= 100


def test_a_proxy_that_cuts_every_connection_after_a_minute_costs_a_request_a_minute(world: World) -> None:
    world.server.longest_watch_s = MINUTE_S
    world.start()
    world.clock.pass_until(HOUR_S)
    assert len(world.server.of("watch")) <= 60


def test_a_watch_that_is_compacted_away_and_cut_goes_on_with_the_state_of_then(world: World) -> None:
    world.server.rules = COST_RULES
    world.start(in_flight=lambda: 1)
    world.clock.pass_until(10 * MINUTE_S)
    assert world.server.annotations == {DELETION_COST: "100"}
    world.server.compact()
    world.server.set_annotation(DELETION_COST, None, "somebody")
    world.server.end_watches(CUT)
    world.clock.pass_until(13 * MINUTE_S)
    assert world.server.annotations == {DELETION_COST: "100"}
    assert value(world.metrics, "weir_sidecar_k8s_api_errors_total", kind="gone") == 0


@pytest.mark.parametrize("fault", ["refused", "silence", "503"])
def test_an_api_server_that_was_away_for_ten_minutes_is_written_to_within_ten_seconds(
    world: World, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    pods = 30
    caplog.set_level(logging.INFO)
    in_flight = [1]
    world.server.rules = GATE_RULES
    for number in range(pods):
        world.start(number, lambda: in_flight[0], readiness_gate=True)
    world.clock.pass_until(10 * MINUTE_S)
    assert world.costs() == ["100"] * pods
    if fault == "503":
        world.server.faults.extend(Fault(verb, 503) for verb in ("patch", "watch") for _ in range(10_000))
    else:
        world.network.fault = fault
    world.server.end_watches(CUT)
    in_flight[0] = 2
    before = len(world.network.attempts)
    world.clock.pass_until(20 * MINUTE_S)
    assert world.costs() == ["100"] * pods
    # Who writes tries every 3 to 6 seconds, who watches every 30 to 60.
    assert len(world.network.attempts) - before <= pods * (10 * MINUTE_S / 3 + 10 * MINUTE_S / 30)
    world.network.fault = None
    world.server.faults.clear()
    watches = len(world.server.of("watch"))
    world.clock.pass_until(20 * MINUTE_S + 10.0)
    assert world.costs() == ["200"] * pods
    world.clock.pass_until(21 * MINUTE_S + 3.0)
    assert len(world.server.of("watch")) == watches + pods
    told = [r.message.partition(",")[0] for r in caplog.records if r.message.startswith("kubernetes API:")]
    assert sorted(told) == sorted(["kubernetes API: answers"] * 2 * pods + ["kubernetes API: does not answer"] * pods)


def test_an_outage_in_which_nothing_changes_costs_no_write(world: World) -> None:
    world.server.rules = COST_RULES
    world.start(in_flight=lambda: 1)
    world.clock.pass_until(5 * MINUTE_S)
    writes = len(world.server.of("patch"))
    world.network.fault = "refused"
    world.clock.pass_until(15 * MINUTE_S)
    world.network.fault = None
    world.clock.pass_until(30 * MINUTE_S)
    assert len(world.server.of("patch")) == writes == 1


@pytest.mark.parametrize("gate", [False, True])
def test_rights_that_come_back_are_noticed_within_a_minute(world: World, gate: bool) -> None:
    world.server.rules = ()
    world.start(in_flight=lambda: 1, readiness_gate=gate)
    world.clock.pass_until(HOUR_S)
    # Each minute the watch and the gate ask; the cost waits for what the watch tells.
    assert len(world.network.attempts) <= (200 if gate else 100)
    world.server.rules = GATE_RULES if gate else COST_RULES
    world.clock.pass_until(HOUR_S + MINUTE_S)
    assert gate_of(world.server) == ("True" if gate else None)
    world.clock.pass_until(HOUR_S + 2 * MINUTE_S)
    assert world.server.annotations == {DELETION_COST: "100"}


def test_a_right_to_write_that_is_missed_alone_is_noticed_within_a_minute(world: World) -> None:
    world.server.rules = tuple(rule for rule in GATE_RULES if "watch" in rule.verbs)
    world.start(in_flight=lambda: 1, readiness_gate=True)
    world.clock.pass_until(HOUR_S)
    assert world.server.annotations == {}
    assert 100 <= len(world.server.of("patch")) <= 250
    world.server.rules = GATE_RULES
    world.clock.pass_until(HOUR_S + MINUTE_S)
    assert (world.server.annotations, gate_of(world.server)) == ({DELETION_COST: "100"}, "True")


def test_a_token_that_expired_is_not_hammered(world: World) -> None:
    world.server.rules = COST_RULES
    world.start(in_flight=lambda: int(world.clock.now() // 600))
    world.clock.pass_until(10 * MINUTE_S)
    world.server.tokens["first"] = world.clock.now()
    world.clock.pass_until(HOUR_S)
    assert len(world.network.attempts) <= 300


def test_a_thousand_pods_that_start_together_ask_fewer_than_fifty_times_a_second(world: World) -> None:
    world.server.rules = GATE_RULES
    shared = SidecarMetrics()
    for number in range(1000):
        world.start(number, lambda: 1, shared, readiness_gate=True, interval_s=10)
    world.clock.pass_until(5 * MINUTE_S)
    assert len(world.server.of("watch")) == 1000
    assert len(world.server.of("patch")) == 2000
    assert world.costs() == ["100"] * 1000
    assert all(pod.tree["status"]["conditions"][-1]["type"] == KV_READY for pod in world.server.pods.values())
    assert world.busiest_second() < 50


@pytest.mark.parametrize("what", ["their load changes", "their watches are cut"])
def test_a_thousand_pods_to_which_the_same_happens_ask_fewer_than_fifty_times_a_second(world: World, what: str) -> None:
    world.server.rules = COST_RULES
    shared = SidecarMetrics()
    load = [0]
    for number in range(1000):
        world.start(number, lambda: load[0], shared, interval_s=10)
    world.clock.pass_until(4 * MINUTE_S)
    if what == "their load changes":
        load[0] = 8
    else:
        world.server.end_watches(CUT)
    world.clock.pass_until(6 * MINUTE_S)
    assert len(world.server.of("patch")) == (1000 if load[0] else 0)
    assert len(world.server.of("watch")) >= (1000 if load[0] else 2000)
    assert world.busiest_second() < 50
