"""The Job of `helm test`: it finds a node where the server does, gets in, ends, and goes."""

from __future__ import annotations

import pytest

from tests.chart.rendering import CI_NAMES, Tree, render


def job(ci: str = "default", values: Tree | None = None) -> Tree:
    return render(ci, values).one("Job")


def pod(ci: str = "default", values: Tree | None = None) -> Tree:
    spec: Tree = job(ci, values)["spec"]["template"]["spec"]
    return spec


@pytest.mark.parametrize("ci", CI_NAMES)
def test_it_may_run_where_the_serving_pods_run(ci: str) -> None:
    serving, test = render(ci).pod(), pod(ci)
    for key in ("tolerations", "nodeSelector"):
        assert test.get(key) == serving.get(key)
    assert test.get("affinity", {}).get("nodeAffinity") == serving.get("affinity", {}).get("nodeAffinity")
    assert "nvidia.com/gpu" not in str(test["containers"]), "it takes no GPU from them"


def test_it_does_not_keep_away_from_the_pods_it_talks_to() -> None:
    values = {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": []}}}
    assert "affinity" not in pod("default", values)


def test_it_ends_even_when_no_node_takes_it_and_goes_by_itself() -> None:
    spec = job()["spec"]
    # Of a Job, unlike of a pod, the deadline counts while nothing is scheduled.
    assert spec["activeDeadlineSeconds"] <= 300
    assert spec["ttlSecondsAfterFinished"] <= 3600
    assert spec["backoffLimit"] == 0
    assert job()["metadata"]["annotations"] == {
        "helm.sh/hook": "test",
        "helm.sh/hook-delete-policy": "before-hook-creation",
    }


@pytest.mark.parametrize("clients", [[], [{"podSelector": {"matchLabels": {"team": "apps"}}}]], ids=["all", "some"])
def test_the_network_policy_lets_it_in(clients: list[Tree]) -> None:
    rendered = render("default", {"networkPolicy": {"enabled": True, "clients": clients}})
    labels = rendered.one("Job")["spec"]["template"]["metadata"]["labels"]
    (rule,) = [r for r in rendered.one("NetworkPolicy")["spec"]["ingress"] if {"port": "grpc", "protocol": "TCP"} in r["ports"]]  # fmt: skip  # noqa: E501
    selectors = [peer["podSelector"].get("matchLabels", {}) for peer in rule["from"] if "podSelector" in peer]
    assert any(selector.items() <= labels.items() for selector in selectors)
    assert all(client in rule["from"] for client in clients)


def test_without_it_nobody_else_is_let_in() -> None:
    clients = [{"podSelector": {"matchLabels": {"team": "apps"}}}]
    values = {"networkPolicy": {"enabled": True, "clients": clients}, "tests": {"enabled": False}}
    assert render("default", values).one("NetworkPolicy")["spec"]["ingress"][0]["from"] == clients
