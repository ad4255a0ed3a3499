"""Values that cannot work are refused with a sentence that says what to change."""

from __future__ import annotations

from typing import Any

import pytest

from tests.chart.rendering import HELM_MAJORS, RenderError, Tree, render

CASES: list[tuple[str, str, Tree, str]] = [
    ("TLS without a certificate", "default", {"tls": {"enabled": True}}, "tls.secretName"),
    (
        "client certificates without TLS",
        "default",
        {"tls": {"clientAuth": {"enabled": True}}},
        "without tls.enabled=true",
    ),
    (
        "cert-manager without an issuer",
        "default",
        {"tls": {"enabled": True, "certManager": {"enabled": True}}},
        "tls.certManager.issuerRef.name",
    ),
    ("token auth without tokens", "default", {"auth": {"enabled": True}}, "auth.tokensSecretName"),
    (
        "a readiness gate that nothing can open",
        "default",
        {"sidecar": {"enabled": False, "readinessGate": {"enabled": True}}},
        "need sidecar.enabled=true",
    ),
    (
        "a sidecar with the namespace's default account",
        "default",
        {"serviceAccount": {"create": False}},
        "serviceAccount.create=true or serviceAccount.name",
    ),
    ("a claim without a name", "default", {"model": {"source": "pvc"}}, "model.pvc.claimName"),
    ("a volume without a source", "default", {"model": {"source": "volume"}}, "model.volume"),
    (
        "a model in the image without a folder",
        "default",
        {"model": {"source": "image", "path": "m"}},
        "absolute folder",
    ),
    ("nothing to fetch", "default", {"model": {"hf": {"repo": ""}}}, "`model.hf.repo` is empty"),
    (
        "an existing claim that is not used",
        "default",
        {"model": {"cache": {"existingClaim": "c"}}},
        "model.cache.enabled is false",
    ),
    (
        "an existing claim for a StatefulSet",
        "statefulset",
        {"model": {"cache": {"existingClaim": "c"}}},
        "one claim for each replica",
    ),
    (
        "several pods on a volume of one node",
        "default",
        {"replicaCount": 2, "model": {"cache": {"enabled": True}}},
        "or use kind=StatefulSet for one claim each",
    ),
    (
        "rolling update keys with Recreate",
        "default",
        {"strategy": {"type": "Recreate", "rollingUpdate": {"maxSurge": 1}}},
        "with Recreate remove it",
    ),
    (
        "a Deployment's strategy for a StatefulSet",
        "statefulset",
        {"strategy": {"type": "Recreate"}},
        "RollingUpdate or OnDelete",
    ),
    ("fewest pods above most", "hpa", {"autoscaling": {"minReplicas": 9}}, "is more than autoscaling.maxReplicas"),
    ("scaling to zero without KEDA", "hpa", {"autoscaling": {"minReplicas": 0}}, "needs autoscaling.type=keda"),
    ("scaling on nothing", "hpa", {"autoscaling": {"queuedTokensPerPod": None, "kvUse": None}}, "needs one of"),
    ("KEDA without Prometheus", "hpa", {"autoscaling": {"type": "keda"}}, "autoscaling.keda.prometheusAddress"),
    (
        "a setting that the chart owns",
        "default",
        {"settings": {"server": {"drain_timeout": 5}}},
        "settings.server.drain_timeout is set by the chart; use termination.drainSeconds instead",
    ),
    ("two GPUs for a replica that computes on one", "default", {"gpu": {"count": 2}}, "Set replicaCount instead"),
    ("a revision of the demo model", "default", {"model": {"hf": {"revision": "v1"}}}, "goes with a hub repository"),
    (
        "pods that others count on a volume of one node",
        "default",
        {"replicaCount": None, "model": {"cache": {"enabled": True}}},
        "[ReadWriteMany], name one node",
    ),
    (
        "a variable that comes from a setting",
        "default",
        {"extraEnv": [{"name": "WEIR_PORT", "value": "1"}]},
        "extraEnv has WEIR_PORT, which comes from settings",
    ),
    (
        "a field of the pod that other values set",
        "default",
        {"extraPodSpec": {"nodeSelector": {"a": "b"}}},
        "extraPodSpec may not have nodeSelector",
    ),
    (
        "a field of the Service that other values set",
        "default",
        {"service": {"extraSpec": {"ports": []}}},
        "service.extraSpec may not have ports",
    ),
    (
        "a variable that comes twice",
        "default",
        {"extraEnv": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]},
        "extraEnv has A twice",
    ),
    (
        "a number that YAML has read as another",
        "default",
        {"podLabels": {"version": 1.1}},
        "`podLabels.version` is the number 1.1, which may not be what was written; put it in quotes",
    ),
    (
        "an integer that Helm cannot hold",
        "default",
        {"podAnnotations": {"id": 2**53 + 1}},
        "`podAnnotations.id` is the number",
    ),
    ("the name another chart uses", "default", {"replicas": 3}, "`replicas` is called `replicaCount` in this chart"),
    ("a value that does not exist", "default", {"imagee": {}}, "`imagee` is not a value of this chart"),
]

SCHEMA_CASES: list[tuple[str, Tree, str]] = [
    ("a typing error below the top level", {"image": {"tga": "1"}}, "tga"),
    ("a setting that the server does not have", {"settings": {"engine": {"max_runing": 5}}}, "max_runing"),
    ("a setting of the wrong type", {"settings": {"engine": {"max_running": "many"}}}, "max_running"),
    ("a KV target that cannot be reached", {"autoscaling": {"kvUse": 2}}, "kvUse"),
    ("a memory that is no quantity", {"resources": {"limits": {"memory": "16 GB"}}}, "memory"),
    ("a label that is too long", {"podLabels": {"a": "b" * 64}}, "podLabels"),
    ("a kind that is neither", {"kind": "DaemonSet"}, "kind"),
]


@pytest.mark.parametrize("helm", HELM_MAJORS)
@pytest.mark.parametrize(("ci", "values", "sentence"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_refused_with_a_sentence(ci: str, values: Tree, sentence: str, helm: int) -> None:
    with pytest.raises(RenderError) as error:
        render(ci, values, helm=helm)
    assert sentence in str(error.value)
    assert "nil pointer" not in str(error.value)


@pytest.mark.parametrize("helm", HELM_MAJORS)
@pytest.mark.parametrize(("values", "name"), [c[1:] for c in SCHEMA_CASES], ids=[c[0] for c in SCHEMA_CASES])
def test_refused_by_the_schema_that_names_the_value(values: Tree, name: str, helm: int) -> None:
    with pytest.raises(RenderError) as error:
        render("default", values, helm=helm)
    assert "schema" in str(error.value)
    assert name in str(error.value)


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"sidecar": {"admissionPolicy": True}}, "admissionPolicy"),
    ],
)
def test_what_kubernetes_1_29_lacks_is_refused_there(values: Tree, word: str) -> None:
    with pytest.raises(RenderError, match=f"{word}.* needs Kubernetes 1.30"):
        render("default", values, kube="1.29.0")
    assert render("default", values, kube="1.30.0").objects


def test_older_kubernetes_is_refused_as_a_whole() -> None:
    with pytest.raises(RenderError, match="incompatible with Kubernetes"):
        render(kube="1.28.0")


def test_a_parent_chart_may_pass_globals() -> None:
    values: dict[str, Any] = {"global": {"imageRegistry": "registry.example.com"}}
    assert render("default", values).text == render().text
