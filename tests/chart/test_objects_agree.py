"""Names, ports, selectors, sockets and files agree across the objects of each render."""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path
from typing import Any

import pytest
from weir import config
from weir.cli import COMMANDS
from weir.commands import fetch as fetch_command
from weir.models import fetch as models_fetch
from weir.sidecar import settings as sidecar_settings

from tests.chart.rendering import CI_NAMES, Rendered, Tree, render

every_render = pytest.mark.parametrize("ci", CI_NAMES)


def pod_labels(rendered: Rendered) -> dict[str, str]:
    labels: dict[str, str] = rendered.workload()["spec"]["template"]["metadata"]["labels"]
    return labels


def selects(selector: dict[str, str], labels: dict[str, str]) -> bool:
    return bool(selector) and selector.items() <= labels.items()


def container_ports(rendered: Rendered) -> dict[str, int]:
    containers = rendered.pod()["containers"] + rendered.pod().get("initContainers", [])
    return {p["name"]: p["containerPort"] for c in containers for p in c.get("ports", [])}


def mounts(container: Tree) -> dict[str, Tree]:
    return {m["mountPath"]: m for m in container.get("volumeMounts", [])}


def load_settings(rendered: Rendered) -> config.Settings:
    return config.load(env=rendered.settings())


@every_render
def test_every_selector_selects_the_serving_pods_and_no_other_pod(ci: str) -> None:
    rendered = render(ci)
    selectors: list[Any] = [s["spec"]["selector"] for s in rendered.all("Service")]
    selectors += [rendered.workload()["spec"]["selector"]["matchLabels"]]
    selectors += [p["spec"]["selector"]["matchLabels"] for p in rendered.all("PodDisruptionBudget")]
    selectors += [p["spec"]["podSelector"]["matchLabels"] for p in rendered.all("NetworkPolicy")]
    selectors += [t["labelSelector"]["matchLabels"] for t in rendered.pod()["topologySpreadConstraints"]]
    for selector in selectors:
        assert selects(selector, pod_labels(rendered))
        for other in rendered.job_pods():
            assert not selects(selector, other["metadata"]["labels"])


@every_render
def test_every_service_port_leads_to_the_container_port_of_its_name(ci: str) -> None:
    rendered = render(ci)
    ports = container_ports(rendered)
    for service in rendered.all("Service"):
        for port in service["spec"]["ports"]:
            # Names of a native sidecar's ports are not resolved by every version of Kubernetes.
            wanted = ports["sidecar"] if port["name"] == "sidecar" else port["name"]
            assert port["targetPort"] == wanted
            assert port["name"] in ports


@every_render
def test_the_settings_are_ones_that_the_server_accepts_with_the_ports_of_the_container(ci: str) -> None:
    rendered = render(ci)
    server = load_settings(rendered).server
    ports = container_ports(rendered)
    assert (server.port, server.metrics_port) == (ports["grpc"], ports["metrics"])


@every_render
def test_the_files_in_the_settings_are_mounted(ci: str) -> None:
    rendered = render(ci)
    settings, mounted = load_settings(rendered), mounts(rendered.container())
    server = settings.server
    for file in (server.tls_cert_file, server.tls_key_file, server.tls_client_ca_file, server.auth_tokens_file):
        assert file is None or str(Path(file).parent) in mounted
    if ci == "image-model":
        assert settings.model.model == "/opt/models/small"
    else:
        model = mounted["/models"]
        assert settings.model.model.startswith("/models")
        assert model["readOnly"] is True


@every_render
def test_every_mounted_volume_exists_and_every_volume_is_mounted(ci: str) -> None:
    pod = render(ci).pod()
    volumes = [v["name"] for v in pod["volumes"]]
    templates = [t["metadata"]["name"] for t in render(ci).workload()["spec"].get("volumeClaimTemplates", [])]
    assert len(volumes) == len(set(volumes))
    used = {m["name"] for c in pod["containers"] + pod.get("initContainers", []) for m in c.get("volumeMounts", [])}
    assert used == {*volumes, *templates}


@every_render
def test_probes_ask_the_plaintext_port_for_services_that_the_server_has(ci: str) -> None:
    rendered = render(ci)
    engine, server = rendered.container(), load_settings(rendered).server
    port = server.health_port if server.tls_cert_file is not None else server.port
    assert engine["startupProbe"]["grpc"] == {"port": port, "service": "readiness"}
    assert engine["livenessProbe"]["grpc"] == {"port": port, "service": "liveness"}
    assert engine["readinessProbe"]["grpc"] == {"port": port, "service": "readiness"}
    assert port in container_ports(rendered).values()


@every_render
def test_the_sidecar_and_the_engine_share_the_admin_socket(ci: str) -> None:
    rendered = render(ci)
    address = load_settings(rendered).server.admin_address
    folder = str(Path(address.removeprefix("unix:")).parent)
    assert address.startswith("unix:/")
    assert mounts(rendered.container())[folder]["name"] == "run"
    if "sidecar" in container_ports(rendered):
        sidecar = rendered.container("sidecar")
        assert f"--admin-address={address}" in sidecar["args"]
        assert mounts(sidecar)[folder]["name"] == "run"
        assert f"--port={container_ports(rendered)['sidecar']}" in sidecar["args"]


@every_render
def test_only_the_sidecar_holds_a_token_of_the_api_server(ci: str) -> None:
    rendered = render(ci)
    pod = rendered.pod()
    assert pod["automountServiceAccountToken"] is False
    tokens = [v["name"] for v in pod["volumes"] if "serviceAccountToken" in str(v)]
    holders = {
        c["name"]
        for c in pod["containers"] + pod.get("initContainers", [])
        for m in c.get("volumeMounts", [])
        if m["name"] in tokens
    }
    keeps = "sidecar" in container_ports(rendered) and (ci != "statefulset" or bool(pod.get("readinessGates")))
    assert holders == ({"sidecar"} if keeps else set())
    assert bool(rendered.all("Role")) == keeps


@every_render
def test_the_role_goes_to_the_account_of_the_pods_and_allows_what_the_sidecar_does(ci: str) -> None:
    rendered = render(ci)
    for binding in rendered.all("RoleBinding"):
        (subject,) = binding["subjects"]
        assert subject["name"] == rendered.pod()["serviceAccountName"]
        role = rendered.one("Role", binding["roleRef"]["name"])
        patched = "pods/status" if rendered.pod().get("readinessGates") else "pods"
        assert role["rules"] == [
            {"apiGroups": [""], "resources": ["pods"], "verbs": ["watch"]},
            {"apiGroups": [""], "resources": [patched], "verbs": ["patch"]},
        ]


@every_render
def test_the_grace_period_covers_pre_stop_drain_and_flush(ci: str) -> None:
    rendered = render(ci)
    pre_stop = rendered.container()["lifecycle"]["preStop"]
    seconds = pre_stop["sleep"]["seconds"] if "sleep" in pre_stop else int(pre_stop["exec"]["command"][1])
    drain = load_settings(rendered).server.drain_timeout_s
    assert rendered.pod()["terminationGracePeriodSeconds"] >= seconds + drain + 1
    if "sidecar" in container_ports(rendered):
        args = rendered.container("sidecar")["args"]
        assert f"--pre-stop-delay={seconds}" in args
        assert f"--drain-timeout={drain:g}" in args


@every_render
def test_scaling_and_claims_name_objects_of_the_release(ci: str) -> None:
    rendered = render(ci)
    names = {(o["kind"], o["metadata"]["name"]) for o in rendered.objects}
    for scaler in rendered.all("HorizontalPodAutoscaler") + rendered.all("ScaledObject"):
        target = scaler["spec"]["scaleTargetRef"]
        assert (target["kind"], target["name"]) in names
        assert "replicas" not in rendered.workload()["spec"]
    for claim in [v["persistentVolumeClaim"] for v in rendered.pod()["volumes"] if "persistentVolumeClaim" in v]:
        assert claim["claimName"] == "models" or ("PersistentVolumeClaim", claim["claimName"]) in names


@every_render
def test_monitors_scrape_every_metrics_port_of_each_pod_once(ci: str) -> None:
    rendered = render(ci)
    wanted = [name for name in container_ports(rendered) if name in ("metrics", "sidecar")]
    for monitor in rendered.all("ServiceMonitor"):
        selector = monitor["spec"]["selector"]["matchLabels"]
        found = [s for s in rendered.all("Service") if selects(selector, s["metadata"]["labels"])]
        assert len(found) == 1
        assert {p["name"] for p in found[0]["spec"]["ports"]} >= set(wanted)
        assert sorted(e["port"] for e in monitor["spec"]["endpoints"]) == sorted(wanted)
    for monitor in rendered.all("ServiceMonitor"):
        assert monitor["spec"]["namespaceSelector"] == {"matchNames": ["llm"]}


@every_render
def test_the_network_policy_lets_in_every_port_and_nothing_else(ci: str) -> None:
    rendered = render(ci)
    for policy in rendered.all("NetworkPolicy"):
        open_ports = {p["port"] for rule in policy["spec"]["ingress"] for p in rule["ports"]}
        ports = container_ports(rendered)
        assert open_ports == {ports["sidecar"] if name == "sidecar" else name for name in ports}


@every_render
def test_the_commands_accept_the_arguments_they_are_started_with(ci: str) -> None:
    rendered = render(ci)
    pods = [rendered.pod(), *(pod["spec"] for pod in rendered.job_pods())]
    started = [c["args"] for pod in pods for c in pod["containers"] + pod.get("initContainers", []) if "args" in c]
    assert {args[0] for args in started} >= {"serve", "generate"}
    for name, *args in started:
        parser = argparse.ArgumentParser(name, exit_on_error=False)
        importlib.import_module(COMMANDS[name].module).add_arguments(parser)
        parsed = parser.parse_args([str(arg) for arg in args])
        if name == "sidecar":
            assert sidecar_settings.load(parsed, {}).pre_stop_delay_s == 10.0 or ci == "existing-volume"
        if name == "serve":
            config.load(parsed, {})


@every_render
def test_the_model_is_fetched_to_where_the_server_looks_for_it(ci: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rendered = render(ci)
    for container in rendered.pod().get("initContainers", []):
        if container["name"] == "fetch-model":
            parser = argparse.ArgumentParser()
            fetch_command.add_arguments(parser)
            args = parser.parse_args(container["args"][1:])
            monkeypatch.setattr(models_fetch, "is_model_folder", lambda folder: True)
            found = models_fetch.fetch(args.name, args.dest, lambda line: None, revision=args.revision)
            assert load_settings(rendered).model.model == str(found)
            assert mounts(container)["/models"]["name"] == mounts(rendered.container())["/models"]["name"]
