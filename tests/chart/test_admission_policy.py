"""What the sidecar's token may change when the admission policy is there: its annotation and its condition."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import kubernetes_validate
import pytest
from weir.sidecar import app

from tests.chart.admission import Request, denial
from tests.chart.rendering import Tree, render

ACCOUNT = "system:serviceaccount:llm:demo-weir"
NAME = "authentication.kubernetes.io/pod-name"
UID = "authentication.kubernetes.io/pod-uid"
COST = "controller.kubernetes.io/pod-deletion-cost"
GATE = "weir.inference/kv-ready"
Change = Callable[[Tree], Any]


def pod() -> Tree:
    """A running pod as the API server has it, with its status from the kubelet."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "demo-weir-5d9-abcde",
            "namespace": "llm",
            "uid": "11111111-1111-1111-1111-111111111111",
            "resourceVersion": "100",
            "generation": 1,
            "labels": {"app.kubernetes.io/name": "weir"},
            "annotations": {"kubectl.kubernetes.io/default-container": "weir", COST: "0"},
            "ownerReferences": [{"kind": "ReplicaSet", "name": "demo-weir-5d9", "uid": "2", "apiVersion": "apps/v1"}],
            "managedFields": [{"manager": "kubelet", "operation": "Update", "subresource": "status"}],
        },
        "spec": {"containers": [{"name": "weir", "image": "weir:0.1.0"}], "nodeName": "gpu-1"},
        "status": {
            "phase": "Running",
            "podIP": "10.0.0.1",
            "podIPs": [{"ip": "10.0.0.1"}],
            "hostIP": "192.0.2.1",
            "conditions": [
                {"type": "PodScheduled", "status": "True"},
                {"type": "Ready", "status": "False", "reason": "ReadinessGatesNotReady"},
            ],
            "containerStatuses": [{"name": "weir", "ready": True, "restartCount": 0}],
        },
    }


def sidecar(name: str = "demo-weir-5d9-abcde", uid: str = "11111111-1111-1111-1111-111111111111") -> Tree:
    return {"username": ACCOUNT, "groups": ["system:serviceaccounts"], "extra": {NAME: [name], UID: [uid]}}


def policy() -> Tree:
    return render("readiness-gate").one("ValidatingAdmissionPolicy")


def verdict(change: Change, user: Tree | None = None, old: Tree | None = None) -> str | None:
    old = pod() if old is None else old
    new = copy.deepcopy(old)
    new["metadata"]["resourceVersion"] = "101"
    new["metadata"]["managedFields"] = [{"manager": "weir-sidecar", "operation": "Apply"}]
    change(new)
    return denial(policy(), Request(sidecar() if user is None else user, old, new))


def annotate(key: str, value: str) -> Change:
    def change(new: Tree) -> None:
        new["metadata"].setdefault("annotations", {})[key] = value

    return change


def condition(kind: str, status: str) -> Change:
    def change(new: Tree) -> None:
        others = [c for c in new["status"]["conditions"] if c["type"] != kind]
        new["status"]["conditions"] = [*others, {"type": kind, "status": status, "reason": "Sidecar"}]

    return change


def test_the_sidecar_may_write_what_it_writes() -> None:
    assert verdict(annotate(COST, "401")) is None
    assert verdict(condition(GATE, "True")) is None
    assert verdict(lambda new: None) is None


def test_the_first_annotation_and_the_first_condition_of_a_pod_are_no_exception() -> None:
    bare = pod()
    del bare["metadata"]["annotations"], bare["status"]["conditions"]
    assert verdict(annotate(COST, "1"), old=bare) is None
    assert verdict(lambda new: new["status"].update(conditions=[{"type": GATE, "status": "True"}]), old=bare) is None
    assert verdict(annotate("other", "1"), old=bare) is not None


def test_the_keys_are_those_that_the_sidecar_writes() -> None:
    assert (app.DELETION_COST, app.KV_READY) == (COST, GATE)
    (keys,) = [v["expression"] for v in policy()["spec"]["variables"] if v["name"] == "keys"]
    assert json.loads(keys) == [COST]


FORGERIES: dict[str, Change] = {
    "another annotation": annotate("cluster-autoscaler.kubernetes.io/safe-to-evict", "false"),
    "another's annotation, changed": annotate("kubectl.kubernetes.io/default-container", "sidecar"),
    "another's annotation, removed": lambda new: new["metadata"]["annotations"].pop(
        "kubectl.kubernetes.io/default-container"
    ),
    "all annotations removed": lambda new: new["metadata"].pop("annotations"),
    "a label": lambda new: new["metadata"]["labels"].update(app="other"),
    "all labels removed": lambda new: new["metadata"].pop("labels"),
    "a finalizer": lambda new: new["metadata"].update(finalizers=["a/b"]),
    "no owner": lambda new: new["metadata"].pop("ownerReferences"),
    "the image": lambda new: new["spec"]["containers"][0].update(image="other:1"),
    "a toleration": lambda new: new["spec"].update(tolerations=[{"operator": "Exists"}]),
    "the address": lambda new: new["status"].update(podIP="10.6.6.6", podIPs=[{"ip": "10.6.6.6"}]),
    "one address more": lambda new: new["status"]["podIPs"].append({"ip": "10.6.6.6"}),
    "Ready": condition("Ready", "True"),
    "ContainersReady": condition("ContainersReady", "True"),
    "a condition removed": lambda new: new["status"].update(conditions=new["status"]["conditions"][:1]),
    "the phase": lambda new: new["status"].update(phase="Succeeded"),
    "a container's status": lambda new: new["status"]["containerStatuses"][0].update(ready=False),
    "a field that only a later Kubernetes has": lambda new: new["status"].update(somethingNew={"a": 1}),
    "the whole status": lambda new: new.pop("status"),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_the_sidecar_may_not_forge(forgery: str) -> None:
    assert verdict(FORGERIES[forgery]) is not None
    with_gate = pod()
    condition(GATE, "True")(with_gate)
    assert verdict(FORGERIES[forgery], old=with_gate) is not None


@pytest.mark.parametrize(
    "user",
    [
        sidecar(name="demo-weir-5d9-other"),
        sidecar(uid="33333333-3333-3333-3333-333333333333"),
        {"username": ACCOUNT, "extra": {}},
        {"username": ACCOUNT},
        {"username": ACCOUNT, "extra": {NAME: ["demo-weir-5d9-abcde"]}},
    ],
    ids=["another pod", "an earlier pod of the name", "a token of no pod", "no extra", "no uid"],
)
def test_a_token_is_held_to_its_own_pod(user: Tree) -> None:
    assert verdict(annotate(COST, "1"), user=user) == "a sidecar may change its own pod only"


def test_others_are_not_looked_at() -> None:
    for name in ("system:node:gpu-1", "system:serviceaccount:llm:other", "system:serviceaccount:else:demo-weir"):
        assert verdict(FORGERIES["the image"], user={"username": name}) is None


def test_it_is_there_with_the_gate_where_the_api_server_has_it_and_otherwise_where_asked_for() -> None:
    def made(ci: str, values: Tree | None = None, kube: str = "1.32.0") -> bool:
        return bool(render(ci, values, kube=kube).all("ValidatingAdmissionPolicy"))

    assert made("readiness-gate")
    assert not made("readiness-gate", kube="1.29.0")
    assert not made("readiness-gate", {"sidecar": {"admissionPolicy": False}})
    assert not made("readiness-gate", {"rbac": {"create": False}})
    assert not made("default")
    assert made("default", {"sidecar": {"admissionPolicy": True}})


def test_the_binding_denies_in_the_namespace_of_the_release_and_the_policy_is_valid() -> None:
    rendered = render("readiness-gate")
    binding = rendered.one("ValidatingAdmissionPolicyBinding")["spec"]
    assert binding["policyName"] == policy()["metadata"]["name"]
    assert binding["validationActions"] == ["Deny"]
    assert binding["matchResources"]["namespaceSelector"] == {"matchLabels": {"kubernetes.io/metadata.name": "llm"}}
    (matched,) = policy()["spec"]["matchConstraints"]["resourceRules"]
    assert matched["resources"] == ["pods", "pods/status"]
    assert matched["operations"] == ["UPDATE"]
    kubernetes_validate.validate(policy(), "1.32", strict=True)
