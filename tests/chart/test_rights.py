"""Who can install what, with Helm against an API server that decides by the rules of the default ClusterRoles."""

from __future__ import annotations

import pytest

from tests.chart.cluster import Cluster, HelmError
from tests.chart.rendering import Tree, render
from tests.chart.rights import ADMIN, EDIT, Rights, allows, rule

EVERYTHING = Rights("cluster-admin", (rule("*", ["*"], ["*"]),))
NAMESPACE_ADMIN = Rights("admin of llm", ADMIN)
NAMESPACE_EDITOR = Rights("editor of llm", EDIT)
GATE: Tree = {"sidecar": {"readinessGate": {"enabled": True}}}
PREPARED: Tree = {"rbac": {"create": False}, "serviceAccount": {"create": False, "name": "weir"}}

# The table of docs/install.md, row by row.
TABLE: list[tuple[str, Tree, Rights, str]] = [
    ("the default", {}, NAMESPACE_ADMIN, ""),
    ("the default", {}, NAMESPACE_EDITOR, "cannot .* resource .roles."),
    ("autoscaling, a budget, a network policy", {"autoscaling": {"enabled": True}, "networkPolicy": {"enabled": True}},
     NAMESPACE_ADMIN, ""),
    ("the readiness gate", GATE, EVERYTHING, ""),
    ("the readiness gate", GATE, NAMESPACE_ADMIN, "permissions not currently held|validatingadmissionpolicies"),
    ("the readiness gate without the policy", {"sidecar": {"readinessGate": {"enabled": True},
     "admissionPolicy": False}}, NAMESPACE_ADMIN, "permissions not currently held: patch pods/status"),
    ("the admission policy", {"sidecar": {"admissionPolicy": True}}, NAMESPACE_ADMIN, "validatingadmissionpolicies"),
    ("with rights that were prepared", PREPARED, NAMESPACE_EDITOR, ""),
    ("the gate with rights that were prepared", GATE | PREPARED, NAMESPACE_EDITOR, ""),
    ("no deletion cost", {"sidecar": {"deletionCost": False}}, NAMESPACE_EDITOR, ""),
    ("no sidecar", {"sidecar": {"enabled": False}}, NAMESPACE_EDITOR, ""),
]  # fmt: skip


@pytest.mark.parametrize(
    ("values", "who", "refusal"), [row[1:] for row in TABLE], ids=[f"{row[0]} by the {row[2].name}" for row in TABLE]
)
def test_who_can_install_what(cluster: Cluster, values: Tree, who: Rights, refusal: str) -> None:
    cluster.api.rights = who
    if refusal:
        with pytest.raises(HelmError, match=refusal):
            cluster.install(values)
        return
    cluster.install(values)
    cluster.upgrade(values)
    cluster.run("uninstall", "demo")
    assert {resource for resource, _, _ in cluster.api.objects} == {"namespaces"}


def test_a_cluster_admin_prepares_the_rest_from_the_same_templates() -> None:
    prepared = ("templates/rbac.yaml", "templates/serviceaccount.yaml", "templates/admissionpolicy.yaml")
    flags = tuple(word for template in prepared for word in ("--show-only", template))
    values = GATE | {"serviceAccount": {"name": "weir"}}
    made = render("default", values, flags=flags)
    assert {obj["kind"] for obj in made.objects} == {
        "Role", "RoleBinding", "ServiceAccount", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding",
    }  # fmt: skip
    used = render("default", GATE | PREPARED)
    assert not {"Role", "ServiceAccount", "ValidatingAdmissionPolicy"} & {obj["kind"] for obj in used.objects}
    (subject,) = made.one("RoleBinding")["subjects"]
    assert subject["name"] == used.pod()["serviceAccountName"] == "weir"


@pytest.mark.parametrize("gate", [False, True], ids=["without the gate", "with the gate"])
def test_the_role_decides_for_what_the_sidecar_does_and_against_everything_else(gate: bool) -> None:
    rules = render("default", {"sidecar": {"readinessGate": {"enabled": gate}}}).one("Role")["rules"]
    assert allows(rules, "watch", "", "pods")
    assert allows(rules, "patch", "", "pods") == (not gate), (
        "the status leaves the image and the rest of the spec alone"
    )
    assert allows(rules, "patch", "", "pods/status") == gate
    for verb in ("create", "delete", "update", "deletecollection", "get", "list"):
        for resource in ("pods", "pods/status", "pods/exec", "pods/ephemeralcontainers", "secrets", "configmaps"):
            assert not allows(rules, verb, "", resource)
    assert not allows(rules, "patch", "apps", "deployments")
