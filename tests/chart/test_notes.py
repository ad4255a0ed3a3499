"""What `helm install` says at the end. (Helm 4 renders it without a cluster; Helm 3 does not.)"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.chart.rendering import CHART, CI_NAMES, Tree, helm_binary


def notes(tmp_path: Path, ci: str = "default", values: Tree | None = None) -> str:
    command = [helm_binary(4), "install", "demo", CHART, "--namespace", "llm", "--dry-run=client"]
    command += ["--values", CHART / "ci" / f"{ci}-values.yaml", "--values", "-"]
    environment = {"KUBECONFIG": str(tmp_path / "none"), "HOME": str(tmp_path)}
    done = subprocess.run(
        command, input=json.dumps(values or {}), env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.partition("\nNOTES:\n")[2]


@pytest.mark.parametrize("ci", CI_NAMES)
def test_they_name_the_workload_and_the_services(ci: str, tmp_path: Path) -> None:
    text = notes(tmp_path, ci)
    name = "llm" if ci == "image-model" else "demo-weir"
    kind = "statefulset" if ci == "statefulset" else "deployment"
    port = 443 if ci == "tls-secret" else 50051
    assert f"rollout status {kind}/{name}\n" in text
    assert f"{name}.llm:{port} " in text
    assert f"dns:///{name}-headless.llm:{port} " in text


def test_they_warn_of_a_monitor_that_prometheus_would_not_find(tmp_path: Path) -> None:
    assert "labels is empty" not in notes(tmp_path, "gpu-shared-pvc")
    text = notes(tmp_path, "gpu-shared-pvc", {"monitoring": {"serviceMonitor": {"labels": None}}})
    assert "WARNING: monitoring.serviceMonitor.labels is empty." in text


def test_they_say_that_nothing_is_published_under_a_name_without_a_registry(tmp_path: Path) -> None:
    assert "nothing is published under weir and weir-sidecar" in notes(tmp_path)
    own = {"image": {"repository": "r.example.com/weir"}, "sidecar": {"image": {"repository": "r.example.com/side"}}}
    assert "published" not in notes(tmp_path, values=own)


def test_they_warn_of_a_volume_that_restricted_namespaces_refuse(tmp_path: Path) -> None:
    values = {"model": {"source": "volume", "volume": {"nfs": {"server": "files", "path": "/models"}}}}
    assert "WARNING: volumes of type nfs:" in notes(tmp_path, values=values)
    assert "volumes of type" not in notes(tmp_path, "existing-volume")


def test_they_say_how_long_a_pod_takes_to_end(tmp_path: Path) -> None:
    text = notes(tmp_path, "existing-volume")
    assert "serves 15 s more, then finishes its streams for up to 600 s; Kubernetes waits 625 s in all." in text


def test_they_name_what_a_gpu_cluster_without_a_spare_gpu_should_know(tmp_path: Path) -> None:
    assert "a rollout has a gap" in notes(tmp_path)
    assert "a rollout has a gap" not in notes(tmp_path, values={"replicaCount": 2})
    assert "a rollout has a gap" not in notes(tmp_path, "cpu")
