"""Every pod of every render is within the restricted Pod Security Standard, and a little beyond it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.chart.rendering import CI_NAMES, Tree, render

VOLUME_TYPES = {
    "configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret",
}  # fmt: skip


def pods(ci: str) -> Iterator[Tree]:
    rendered = render(ci)
    yield rendered.pod()
    for pod in rendered.job_pods():
        yield pod["spec"]


def containers(pod: Tree) -> list[Tree]:
    found: list[Tree] = pod["containers"] + pod.get("initContainers", [])
    return found


def own_containers(pod: Tree) -> list[Tree]:
    return [c for c in containers(pod) if c["name"] not in ("warm", "log-shipper")]


@pytest.mark.parametrize("ci", CI_NAMES)
def test_restricted(ci: str) -> None:
    for pod in pods(ci):
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] > 0
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
        for container in containers(pod):
            security = container["securityContext"]
            assert security["allowPrivilegeEscalation"] is False
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert "privileged" not in security
            assert not [p for p in container.get("ports", []) if "hostPort" in p]
        for volume in pod.get("volumes", []):
            kinds = set(volume) - {"name"}
            assert kinds <= VOLUME_TYPES


@pytest.mark.parametrize("ci", CI_NAMES)
def test_root_file_systems_are_read_only_and_what_is_written_to_is_bounded(ci: str) -> None:
    for pod in pods(ci):
        for container in own_containers(pod):
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
        for volume in pod.get("volumes", []):
            if "emptyDir" in volume and volume["name"] != "scratch":
                assert volume["emptyDir"]["sizeLimit"]


@pytest.mark.parametrize("ci", CI_NAMES)
def test_every_container_asks_for_memory_and_has_a_limit(ci: str) -> None:
    for pod in pods(ci):
        for container in own_containers(pod):
            assert container["resources"]["requests"]["memory"]
            assert container["resources"]["limits"]["memory"]


@pytest.mark.parametrize("ci", CI_NAMES)
def test_secrets_are_referred_to_and_never_rendered(ci: str) -> None:
    assert not render(ci).all("Secret")
    for pod in pods(ci):
        for container in containers(pod):
            for variable in container.get("env", []):
                if variable["name"] in ("HF_TOKEN", "OTEL_EXPORTER_OTLP_HEADERS"):
                    assert "secretKeyRef" in variable["valueFrom"]
