"""The rights that the sidecar needs: no fewer, no more, and what they cannot say."""

from __future__ import annotations

import json
from typing import Any

import pytest
from weir.sidecar.settings import PodIdentity

from tests.unit.sidecar.api_server import ApiServer
from tests.unit.sidecar.pods import MERGE
from tests.unit.sidecar.rights import COST_RULES, EXAMPLES, GATE_RULES, Rule, allowed, rendered, rules_of
from tests.unit.sidecar.simulation import World, simulated

NEEDED = {False: COST_RULES, True: GATE_RULES}


def single_rights(rules: tuple[Rule, ...]) -> list[tuple[str, str]]:
    return [(verb, resource) for rule in rules for verb in rule.verbs for resource in rule.resources]


def denied_in_an_hour(rules: tuple[Rule, ...], gate: bool) -> int:
    with simulated() as clock:
        world = World(clock)
        world.server.rules = rules
        world.start(in_flight=lambda: int(clock.now() // 600), readiness_gate=gate)
        clock.pass_until(3600.0)
        metrics = world.metrics.registry
        return int(metrics.get_sample_value("weir_sidecar_k8s_api_errors_total", {"kind": "denied"}) or 0)


@pytest.mark.parametrize("gate", [False, True])
def test_two_rights_are_enough_and_each_of_them_is_used(gate: bool) -> None:
    rights = single_rights(NEEDED[gate])
    assert len(rights) == 2
    assert denied_in_an_hour(NEEDED[gate], gate) == 0
    for missing in rights:
        rest = tuple(Rule((verb,), (resource,)) for verb, resource in rights if (verb, resource) != missing)
        assert denied_in_an_hour(rest, gate) > 0


def sidecar_args(objects: list[dict[str, Any]]) -> list[str]:
    for workload in objects:
        if workload["kind"] in ("Deployment", "StatefulSet"):
            for container in workload["spec"]["template"]["spec"].get("initContainers", []):
                if container["name"] == "sidecar":
                    found: list[str] = container["args"]
                    return found
    return []


@pytest.mark.parametrize("example", sorted(path.name for path in EXAMPLES.iterdir()))
def test_the_role_of_each_render_of_the_chart_allows_what_its_sidecar_does(example: str) -> None:
    objects = rendered(example)
    args = sidecar_args(objects)
    gate = "--readiness-gate" in args
    rules = tuple(rule for o in objects if o["kind"] == "Role" for rule in rules_of(o))
    needed = single_rights(NEEDED[gate]) if gate or "--deletion-cost" in args else []
    assert all(allowed(rules, verb, resource, "any-pod") for verb, resource in needed)


@pytest.fixture
def server() -> ApiServer:
    with simulated() as clock:
        made = ApiServer(clock)
        made.add(PodIdentity("other-0", "llm", "uid-9"))
        return made


def patch(server: ApiServer, target: str, body: dict[str, Any]) -> int:
    headers = {"Authorization": "Bearer first", "Content-Type": MERGE, "User-Agent": "thief/1"}
    path = f"/api/v1/namespaces/llm/pods/{target}"
    return server.handle("PATCH", path, headers, json.dumps(body).encode()).status


IMAGE = {"spec": {"containers": [{"name": "weir", "image": "evil:1"}]}}


def test_with_the_gate_a_stolen_token_cannot_change_what_a_pod_runs(server: ApiServer) -> None:
    server.rules = GATE_RULES
    assert patch(server, "other-0", IMAGE) == 403
    assert patch(server, "other-0/status", IMAGE) == 200
    assert server.pods["other-0"].tree["spec"]["containers"][0]["image"] == "weir:1"


def test_without_the_gate_only_an_admission_policy_keeps_a_stolen_token_from_the_image_of_another_pod(
    server: ApiServer,
) -> None:
    server.rules = COST_RULES
    assert patch(server, "other-0", IMAGE) == 200
    assert server.pods["other-0"].tree["spec"]["containers"][0]["image"] == "evil:1"
    assert patch(server, "other-0/status", {"status": {"podIP": "10.6.6.6"}}) == 403


def test_a_role_that_names_pods_holds_for_those_only_and_for_a_watch_by_its_selector() -> None:
    rule = Rule(("watch", "patch"), ("pods",), ("weir-0",))
    with simulated() as clock:
        server = ApiServer(clock, (rule,))
        server.add(PodIdentity("other-0", "llm", "uid-9"))
        assert patch(server, "weir-0", {"metadata": {"labels": {"a": "b"}}}) == 200
        assert patch(server, "other-0", {"metadata": {"labels": {"a": "b"}}}) == 403
        for name, status in (("weir-0", 200), ("other-0", 403)):
            path = f"/api/v1/namespaces/llm/pods?watch=true&fieldSelector=metadata.name%3D{name}"
            assert server.handle("GET", path, {"Authorization": "Bearer first"}, b"").status == status
