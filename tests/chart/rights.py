"""Decisions of the RBAC authorizer, and of its check against giving away more than one has.

Rules of the ClusterRoles `edit` and `admin`, as far as they touch what a chart installs: from the default roles of
kubernetes 1.36 (plugin/pkg/auth/authorizer/rbac/bootstrappolicy/policy.go).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

READ = ("get", "list", "watch")
WRITE = ("create", "delete", "deletecollection", "patch", "update")
Rule = dict[str, Any]


def rule(group: str, resources: Iterable[str], verbs: Iterable[str]) -> Rule:
    """A rule of one API group."""
    return {"apiGroups": [group], "resources": list(resources), "verbs": list(verbs)}


WORKLOADS = ("deployments", "deployments/scale", "statefulsets", "statefulsets/scale")
EDIT: tuple[Rule, ...] = (
    rule("", ("pods", "services", "configmaps", "secrets", "serviceaccounts", "persistentvolumeclaims"), READ + WRITE),
    rule("", ("pods/status", "namespaces"), READ),
    rule("apps", WORKLOADS, READ + WRITE),
    rule("batch", ("jobs",), READ + WRITE),
    rule("autoscaling", ("horizontalpodautoscalers",), READ + WRITE),
    rule("policy", ("poddisruptionbudgets",), READ + WRITE),
    rule("networking.k8s.io", ("networkpolicies",), READ + WRITE),
)
ADMIN: tuple[Rule, ...] = (
    *EDIT,
    rule("rbac.authorization.k8s.io", ("roles", "rolebindings"), READ + WRITE),
)


def allows(rules: Iterable[Rule], verb: str, group: str, resource: str) -> bool:
    """Whether one rule covers the request."""
    return any(
        (group in r["apiGroups"] or "*" in r["apiGroups"])
        and (resource in r["resources"] or "*" in r["resources"])
        and (verb in r["verbs"] or "*" in r["verbs"])
        for r in rules
    )


@dataclass
class Rights:
    """The rules of one user; `roles` are those that exist, by name, for bindings that refer to them."""

    name: str
    rules: tuple[Rule, ...]

    def refuses(self, verb: str, group: str, resource: str, given: dict[str, Any]) -> str:
        """Why a request is forbidden; empty when it is allowed."""
        if not allows(self.rules, verb, group, resource):
            return f'{resource}.{group} is forbidden: {self.name} cannot {verb} resource "{resource}"'
        if resource == "roles" and verb in ("create", "update", "patch"):
            for wanted in given.get("rules", []):
                for one in wanted["verbs"]:
                    for part in wanted["resources"]:
                        if not allows(self.rules, one, wanted["apiGroups"][0], part):
                            return (
                                f"{self.name} is attempting to grant RBAC permissions not currently held: {one} {part}"
                            )
        return ""
