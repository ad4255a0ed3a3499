"""Faults that charts of model servers had in production, each with the value that is right."""

from __future__ import annotations

import pytest

from tests.chart.rendering import CI_NAMES, ROOT, Tree, render

every_render = pytest.mark.parametrize("ci", CI_NAMES)


def all_probes(container: Tree) -> dict[str, Tree]:
    return {name: container[name] for name in ("startupProbe", "livenessProbe", "readinessProbe") if name in container}


@every_render
def test_a_slow_load_is_bounded_by_the_startup_probe_and_not_by_liveness(ci: str) -> None:
    engine = render(ci).container()
    startup = engine["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 1200
    assert "initialDelaySeconds" not in engine["livenessProbe"]


def test_the_load_budget_is_a_value_is_rounded_up_to_whole_periods_and_ends_before_the_rollout_fails() -> None:
    rendered = render("default", {"startupBudgetSeconds": 2001})
    startup = rendered.container()["startupProbe"]
    assert (startup["failureThreshold"], startup["periodSeconds"]) == (401, 5)
    assert rendered.workload()["spec"]["progressDeadlineSeconds"] > 2005


@every_render
def test_one_slow_answer_restarts_nothing(ci: str) -> None:
    rendered = render(ci)
    for container in rendered.pod()["containers"] + rendered.pod().get("initContainers", []):
        if "livenessProbe" in container:
            assert container["livenessProbe"]["failureThreshold"] >= 3
            assert container["livenessProbe"]["timeoutSeconds"] > 1


@every_render
def test_every_probe_says_how_long_it_waits(ci: str) -> None:
    rendered = render(ci)
    for container in rendered.pod()["containers"] + rendered.pod().get("initContainers", []):
        for probe in all_probes(container).values():
            assert probe["timeoutSeconds"] >= 3
            assert probe["periodSeconds"] >= 1


@pytest.mark.parametrize("key", ["tolerations", "nodeSelector", "affinity", "topologySpreadConstraints"])
def test_placement_is_rendered_under_its_key_or_not_at_all(key: str) -> None:
    given: dict[str, object] = {
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "nodeSelector": {"pool": "gpu"},
        "affinity": {"podAntiAffinity": {}},
        "topologySpreadConstraints": [{"maxSkew": 2, "topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule"}],
    }
    empty = [] if isinstance(given[key], list) else {}
    assert key not in render("default", {key: None}).pod()
    if isinstance(empty, list):
        assert key not in render("default", {key: empty}).pod()
    placed = render("default", {key: given[key]}).pod()[key]
    if key == "topologySpreadConstraints":
        (placed,) = placed
        assert placed.pop("labelSelector") == {"matchLabels": render().workload()["spec"]["selector"]["matchLabels"]}
        placed = [placed]
    assert placed == given[key]


def test_a_constraint_with_its_own_selector_keeps_it() -> None:
    constraint = {
        "maxSkew": 1,
        "topologyKey": "rack",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"a": "b"}},
    }
    (placed,) = render("default", {"topologySpreadConstraints": [constraint]}).pod()["topologySpreadConstraints"]
    assert placed == constraint


def test_the_gpu_is_written_to_requests_and_limits() -> None:
    resources = render().container()["resources"]
    assert resources["limits"]["nvidia.com/gpu"] == resources["requests"]["nvidia.com/gpu"] == "1"
    assert resources["requests"]["memory"] == "16Gi"


def test_another_resource_name_replaces_the_default_one() -> None:
    resources = render("default", {"gpu": {"resourceName": "amd.com/gpu"}}).container()["resources"]
    assert resources["limits"]["amd.com/gpu"] == "1"
    assert "nvidia.com/gpu" not in resources["limits"]


def test_no_gpu_leaves_no_trace_of_one() -> None:
    assert "gpu" not in str(render("cpu").container()["resources"])


def test_resources_of_ones_own_replace_the_presets_and_the_gpu_is_still_asked_for() -> None:
    resources = render("default", {"resources": {"requests": {"cpu": 1}}}).container()["resources"]
    assert resources == {"limits": {"nvidia.com/gpu": "1"}, "requests": {"cpu": "1", "nvidia.com/gpu": "1"}}


def test_a_claim_of_dynamic_resource_allocation_takes_the_place_of_the_extended_resource() -> None:
    claim = {"name": "gpu", "resourceClaimTemplateName": "one-gpu"}
    rendered = render("default", {"gpu": {"resourceClaims": [claim]}})
    assert rendered.pod()["resourceClaims"] == [claim]
    resources = rendered.container()["resources"]
    assert resources["claims"] == [{"name": "gpu"}]
    assert "nvidia.com/gpu" not in str(resources)


def test_a_gpu_rollout_needs_no_spare_gpu() -> None:
    strategy = render("gpu-shared-pvc").workload()["spec"]["strategy"]
    assert strategy == {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}


def test_a_cpu_rollout_starts_the_new_pod_first() -> None:
    strategy = render("cpu").workload()["spec"]["strategy"]
    assert strategy == {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}


def test_a_volume_of_one_node_is_given_back_before_the_new_pod_needs_it() -> None:
    values = {"model": {"cache": {"enabled": True}}}
    assert render("cpu", values).workload()["spec"]["strategy"]["rollingUpdate"]["maxSurge"] == 0


def test_recreate_comes_without_rolling_update_keys() -> None:
    assert render("existing-claim").workload()["spec"]["strategy"] == {"type": "Recreate"}


@every_render
def test_a_mesh_takes_the_port_for_grpc(ci: str) -> None:
    wanted = "kubernetes.io/h2c" if ci == "readiness-gate" else "grpc"
    for service in render(ci).all("Service"):
        (port,) = [p for p in service["spec"]["ports"] if p["name"] == "grpc"]
        assert port["appProtocol"] == wanted


@every_render
def test_a_service_named_weir_puts_nothing_into_the_environment(ci: str) -> None:
    assert render(ci).pod()["enableServiceLinks"] is False
    for pod in render(ci).job_pods():
        assert pod["spec"]["enableServiceLinks"] is False


def test_prometheus_reaches_the_metrics_through_the_network_policy() -> None:
    rules = render("readiness-gate").one("NetworkPolicy")["spec"]["ingress"]
    (scrape,) = [r for r in rules if "monitoring" in str(r.get("from"))]
    assert {p["port"] for p in scrape["ports"]} == {"metrics", 9091}


def test_the_kubelet_reaches_the_health_port_through_the_network_policy() -> None:
    rules = render("tls-cert-manager").one("NetworkPolicy")["spec"]["ingress"]
    assert {"ports": [{"port": "health", "protocol": "TCP"}]} in rules


@every_render
def test_the_server_is_the_process_that_gets_the_signals(ci: str) -> None:
    rendered = render(ci)
    for name in ("weir", "sidecar"):
        for container in rendered.pod()["containers"] + rendered.pod().get("initContainers", []):
            if container["name"] == name:
                assert "command" not in container, "the image's entrypoint is exec-form"


def test_a_query_for_scaling_always_has_a_value() -> None:
    triggers = [t for t in render("keda").one("ScaledObject")["spec"]["triggers"] if t["type"] == "prometheus"]
    assert len(triggers) == 2
    for trigger in triggers:
        assert trigger["metadata"]["query"].endswith("or vector(0)")


def test_scaling_follows_the_queue_and_a_ratio_below_its_bound() -> None:
    queue, use = render("hpa").one("HorizontalPodAutoscaler")["spec"]["metrics"]
    assert queue["pods"]["target"] == {"type": "AverageValue", "averageValue": "4000"}
    assert use["pods"]["target"] == {"type": "AverageValue", "averageValue": "700m"}


def test_scaling_reads_metrics_that_the_server_exports() -> None:
    exported = render("keda").text + render("hpa").text
    source = "".join(path.read_text() for path in (ROOT / "service" / "weir" / "telemetry").glob("*.py"))
    for metric in ("weir_queue_tokens", "weir_kv_used_ratio"):
        assert metric in exported
        assert f'"{metric}"' in source


def test_while_the_endpoints_are_taken_away_the_pod_goes_on_serving() -> None:
    assert render().container()["lifecycle"]["preStop"] == {"sleep": {"seconds": 10}}
    older = render(kube="1.29.0").container()["lifecycle"]["preStop"]
    assert older == {"exec": {"command": ["sleep", "10"]}}
    assert "lifecycle" not in render("default", {"termination": {"preStopSeconds": 0}}).container()


def test_the_pods_roll_when_settings_change_and_only_then() -> None:
    def template(values: Tree) -> object:
        return render("default", values).workload()["spec"]["template"]

    assert template({"settings": {"engine": {"max_running": 8}}}) != template({})
    assert template({"replicaCount": 3}) == template({})
    assert template({"monitoring": {"serviceMonitor": {"enabled": True}}}) == template({})


def test_the_deletion_cost_is_left_alone_where_nothing_reads_it() -> None:
    assert "--deletion-cost" in render().container("sidecar")["args"]
    assert "--no-deletion-cost" in render("statefulset").container("sidecar")["args"]


def test_no_port_of_the_pod_can_start_a_drain() -> None:
    pre_stop = render().container("sidecar")["lifecycle"]["preStop"]
    assert pre_stop == {"exec": {"command": ["sh", "-c", "kill -USR1 1"]}}
