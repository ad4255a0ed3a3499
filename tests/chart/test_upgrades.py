"""Upgrades and rollbacks by both majors of Helm: which pods live through them, and what is refused before it begins."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

from tests.chart.api_server import ApiServer
from tests.chart.cluster import Cluster, HelmError
from tests.chart.rendering import Tree

SCALED: Tree = {"autoscaling": {"enabled": True, "minReplicas": 4, "maxReplicas": 8}}
OTHER_SETTINGS: Tree = {"settings": {"engine": {"max_running": 8}}}


def test_four_replicas_live_through_autoscaling_a_new_chart_and_a_scale_by_hand(cluster: Cluster) -> None:
    cluster.install({"replicaCount": 4})
    first = list(cluster.pods.running)
    cluster.upgrade({"replicaCount": 4} | SCALED)
    cluster.bump("9.9.9")
    cluster.upgrade({"replicaCount": 4} | SCALED)
    assert cluster.pods.running == first == [1, 2, 3, 4]
    cluster.api.scale("demo-weir", 6, "kubectl")
    cluster.upgrade(SCALED | {"service": {"annotations": {"revision": 4}}})
    cluster.upgrade(SCALED | {"service": {"annotations": {"revision": 5}}, "replicaCount": None})
    assert cluster.pods.running == [1, 2, 3, 4, 5, 6]
    cluster.rollback(4)
    assert cluster.pods.running == [1, 2, 3, 4, 5, 6]
    assert cluster.pods.ended == 0
    cluster.run("uninstall", "demo")
    assert cluster.pods.running == []
    assert {resource for resource, _, _ in cluster.api.objects} == {"namespaces"}


@pytest.mark.parametrize("majors", [(3, 4), (4, 3)], ids=["3 to 4", "4 to 3"])
def test_so_they_do_when_the_major_of_helm_changes(api: ApiServer, tmp_path: Path, majors: tuple[int, int]) -> None:
    cluster = Cluster(api, majors[0], tmp_path)
    cluster.install({"replicaCount": 4})
    cluster.helm = majors[1]
    cluster.upgrade({"replicaCount": 4} | SCALED)
    cluster.api.scale("demo-weir", 7, "kube-controller-manager")
    cluster.upgrade(SCALED)
    assert cluster.pods.running == [1, 2, 3, 4, 5, 6, 7]
    cluster.helm = majors[0]
    cluster.upgrade(SCALED)
    assert cluster.pods.running == [1, 2, 3, 4, 5, 6, 7]


def test_without_a_number_of_its_own_a_release_can_go_back_anywhere(cluster: Cluster) -> None:
    cluster.install(SCALED)
    assert len(cluster.pods.running) == 4, "the autoscaler raised them from the API server's default"
    cluster.api.scale("demo-weir", 8, "kube-controller-manager")
    cluster.upgrade({"replicaCount": None})
    cluster.upgrade(SCALED)
    assert (cluster.replicas(), cluster.pods.ended) == (8, 0)
    cluster.api.scale("demo-weir", 5, "kubectl")
    cluster.rollback(1)
    assert (cluster.replicas(), cluster.pods.ended) == (5, 3)
    owners = cluster.api.owners["deployments", "llm", "demo-weir"]
    assert [who for who, paths in owners.items() if ("spec", "replicas") in paths] == [("kubectl", "Update")]


def test_a_release_that_had_a_number_goes_back_to_the_one_of_the_revision(cluster: Cluster) -> None:
    """What the operations guide warns of: Helm stores manifests, and rolls back to what is in them."""
    cluster.install({"replicaCount": 4})
    cluster.upgrade(SCALED)
    cluster.api.scale("demo-weir", 7, "kube-controller-manager")
    cluster.upgrade(SCALED | {"monitoring": {"dashboards": {"enabled": True}}})
    if cluster.helm == 3:
        cluster.rollback(2)
        assert cluster.replicas() == 4
    else:
        with pytest.raises(HelmError, match="conflict"):
            cluster.rollback(2)
        assert len(cluster.pods.running) == 7
        cluster.run("rollback", "demo", "2", "--force-conflicts")
        assert cluster.replicas() == 4
    cluster.api.scale("demo-weir", 7, "kube-controller-manager")
    cluster.upgrade(SCALED)
    assert len(cluster.pods.running) == 7, "the way that keeps them: the old values, as an upgrade"


def test_a_number_against_a_scale_by_hand_is_refused_before_anything_changes(cluster: Cluster) -> None:
    cluster.install({"replicaCount": 4})
    cluster.api.scale("demo-weir", 7, "kubectl")
    before = copy.deepcopy({key: obj for key, obj in cluster.api.objects.items() if key[0] != "secrets"})
    if cluster.helm == 3:
        cluster.upgrade({"replicaCount": 4})
        assert cluster.replicas() == 4, "Helm 3 takes what it is told"
        return
    with pytest.raises(HelmError, match="replicaCount is 4, but Deployment demo-weir has 7 replicas, set by kubectl"):
        cluster.upgrade({"replicaCount": 4} | OTHER_SETTINGS)
    assert before == {key: obj for key, obj in cluster.api.objects.items() if key[0] != "secrets"}
    cluster.upgrade({"replicaCount": 7})
    cluster.upgrade({"replicaCount": None})
    cluster.rollback(2)
    assert len(cluster.pods.running) == 7
    assert cluster.pods.ended == 0


def test_a_chart_version_alone_restarts_nothing(cluster: Cluster) -> None:
    cluster.install({})
    cluster.bump("0.1.1")
    cluster.upgrade({})
    labels = cluster.api.objects["deployments", "llm", "demo-weir"]["metadata"]["labels"]
    assert labels["helm.sh/chart"] == "weir-0.1.1"
    assert (cluster.pods.running, cluster.pods.ended) == ([1], 0)


def test_what_a_failed_upgrade_leaves_behind_does_not_reach_the_pods_of_the_last_revision(cluster: Cluster) -> None:
    cluster.install({"settings": {"engine": {"max_running": 16}}})
    template = cluster.pods.template
    refused = cluster.api.refuse = {"deployments"}
    with pytest.raises(HelmError, match="not now"):
        cluster.upgrade(OTHER_SETTINGS)
    refused.clear()
    assert cluster.pods.template == template
    pod = cluster.api.objects["deployments", "llm", "demo-weir"]["spec"]["template"]["spec"]
    read_later = [v for v in pod["volumes"] if "configMap" in v or "persistentVolumeClaim" in v]
    assert read_later == [], "nothing that a container reads at its next start is outside the template"
    assert not [s for c in pod["containers"] for s in c.get("envFrom", [])]
    cluster.upgrade(OTHER_SETTINGS)
    assert cluster.pods.template != template


def test_the_strategy_can_become_recreate_whatever_it_was(cluster: Cluster) -> None:
    for strategy in ({}, {"type": "Recreate"}, {"type": "RollingUpdate"}, {"type": "Recreate"}):
        values = {"strategy": strategy}
        if ("deployments", "llm", "demo-weir") in cluster.api.objects:
            cluster.upgrade(values)
        else:
            cluster.install(values)
    assert cluster.api.objects["deployments", "llm", "demo-weir"]["spec"]["strategy"] == {"type": "Recreate"}


CACHE: Tree = {"enabled": True, "size": "50Gi", "accessModes": ["ReadWriteMany"]}
IMMUTABLE: list[tuple[str, Tree, Tree, str]] = [
    (
        "the size of a StatefulSet's volumes",
        {"kind": "StatefulSet", "model": {"cache": CACHE}},
        {"kind": "StatefulSet", "model": {"cache": CACHE | {"size": "60Gi"}}},
        "its claim templates are immutable",
    ),
    (
        "the annotations of a StatefulSet's volumes",
        {"kind": "StatefulSet", "model": {"cache": CACHE}},
        {"kind": "StatefulSet", "model": {"cache": CACHE | {"annotations": {"a": "b"}}}},
        "its claim templates are immutable",
    ),
    (
        "whether a StatefulSet has volumes",
        {"kind": "StatefulSet"},
        {"kind": "StatefulSet", "model": {"cache": CACHE}},
        "its claim templates are immutable",
    ),
    (
        "the access modes of a claim",
        {"model": {"cache": CACHE}},
        {"model": {"cache": CACHE | {"accessModes": ["ReadWriteOnce"]}}},
        "accessModes of claim demo-weir-model cannot change",
    ),
    (
        "the storage class of a claim",
        {"model": {"cache": CACHE | {"storageClassName": "a"}}},
        {"model": {"cache": CACHE | {"storageClassName": "b"}}},
        'cannot change from "a" to "b"',
    ),
    (
        "the selector",
        {"fullnameOverride": "demo-weir"},
        {"fullnameOverride": "demo-weir", "nameOverride": "other"},
        "the selector of Deployment demo-weir cannot change",
    ),
    (
        "the class of a load balancer",
        {"service": {"type": "LoadBalancer", "extraSpec": {"loadBalancerClass": "a/b"}}},
        {"service": {"type": "LoadBalancer", "extraSpec": {"loadBalancerClass": "a/c"}}},
        "loadBalancerClass of Service demo-weir cannot change",
    ),
]


@pytest.mark.parametrize(("before", "after", "sentence"), [c[1:] for c in IMMUTABLE], ids=[c[0] for c in IMMUTABLE])
def test_what_cannot_change_is_refused_before_anything_changes(
    cluster: Cluster, before: Tree, after: Tree, sentence: str
) -> None:
    cluster.install(before)
    # What others fill in must not look like a change.
    cluster.upgrade(before | {"podAnnotations": {"a": "b"}})
    objects = copy.deepcopy({key: obj for key, obj in cluster.api.objects.items() if key[0] != "secrets"})
    with pytest.raises(HelmError, match=sentence):
        cluster.upgrade(after | {"podAnnotations": {"a": "c"}})
    assert objects == {key: obj for key, obj in cluster.api.objects.items() if key[0] != "secrets"}


@pytest.mark.parametrize("level", ["restricted", "baseline", "privileged", None])
def test_a_volume_that_the_namespace_forbids_is_refused_where_no_pod_would_come(
    cluster: Cluster, level: str | None
) -> None:
    labels = {"pod-security.kubernetes.io/enforce": level} if level else {}
    cluster.api.objects["namespaces", "", "llm"]["metadata"]["labels"] = labels
    values: Tree = {"model": {"source": "volume", "volume": {"nfs": {"server": "files", "path": "/models"}}}}
    if level == "restricted":
        with pytest.raises(HelmError, match="namespace llm enforces Pod Security"):
            cluster.install(values)
        cluster.install({"model": {"source": "volume", "volume": {"csi": {"driver": "files.example.com"}}}})
    else:
        cluster.install(values)
    assert cluster.pods.running
