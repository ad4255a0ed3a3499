"""Releases and objects with names that YAML, labels and Services have opinions about."""

from __future__ import annotations

import re

import pytest
import yaml

from tests.chart.rendering import HELM_MAJORS, RenderError, StrictLoader, render
from tests.chart.test_values_of_every_type import accept

# A Service's name, before Kubernetes 1.36 relaxed it.
DNS_1035 = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
RELEASES = ["123", "no", "yes", "0x1f", "1e6", "null", "true", "a.b", "weir", "weir-canary", "1.10", "x" * 53]


@pytest.mark.parametrize("helm", HELM_MAJORS)
@pytest.mark.parametrize("release", RELEASES)
def test_a_release_may_be_called(release: str, helm: int) -> None:
    for ci in ("default", "keda", "tls-cert-manager", "gpu-shared-pvc"):
        rendered = render(ci, helm=helm, release=release)
        accept(rendered)
        assert rendered.workload()["spec"]["selector"]["matchLabels"]["app.kubernetes.io/instance"] == release
        for service in rendered.all("Service"):
            assert DNS_1035.fullmatch(service["metadata"]["name"])


def test_no_two_releases_have_an_object_in_common() -> None:
    made: set[tuple[str, str]] = set()
    for release in RELEASES:
        names = {(o["kind"], o["metadata"]["name"]) for o in render("default", release=release).objects}
        assert not made & names
        made |= names


@pytest.mark.parametrize("name", ["123", "no", "1e6"])
def test_a_name_of_ones_own_may_be(name: str) -> None:
    rendered = render("default", {"nameOverride": name})
    accept(rendered)
    assert rendered.workload()["spec"]["selector"]["matchLabels"]["app.kubernetes.io/name"] == name
    accept(render("default", {"fullnameOverride": f"n{name}"}))


@pytest.mark.parametrize("name", ["123", "Weir", "a.b", "a_b", "-a", "a-"])
def test_a_full_name_that_no_service_can_have_is_refused(name: str) -> None:
    with pytest.raises(RenderError, match="fullnameOverride"):
        render("default", {"fullnameOverride": name})


@pytest.mark.parametrize("namespace", ["123", "no", "1e6"])
def test_a_namespace_may_be(namespace: str) -> None:
    text = render("readiness-gate", namespace=namespace).text
    for obj in yaml.load_all(text, StrictLoader):
        if obj and "namespace" in obj["metadata"]:
            assert obj["metadata"]["namespace"] == namespace
