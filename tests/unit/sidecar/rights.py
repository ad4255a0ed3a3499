"""What a Role allows, decided as the API server decides it; and the chart's Roles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

EXAMPLES = Path(__file__).resolve().parents[3] / "helm" / "weir" / "examples"


@dataclass(frozen=True)
class Rule:
    """One rule of the core API group. No names: all of them."""

    verbs: tuple[str, ...]
    resources: tuple[str, ...]
    names: tuple[str, ...] = ()

    def allows(self, verb: str, resource: str, name: str) -> bool:
        """`resource` with its subresource; `name` empty where a request names none."""
        return verb in self.verbs and resource in self.resources and (not self.names or name in self.names)


# What the sidecar needs and no more: without the gate, and with it.
COST_RULES = (Rule(("watch", "patch"), ("pods",)),)
GATE_RULES = (Rule(("watch",), ("pods",)), Rule(("patch",), ("pods/status",)))


def rules_of(role: dict[str, Any]) -> tuple[Rule, ...]:
    """The rules of a rendered Role; a wildcard in it is an error here."""
    found = []
    for rule in role["rules"]:
        assert "*" not in [*rule["verbs"], *rule["resources"], *rule["apiGroups"]], rule
        if "" in rule["apiGroups"]:
            found.append(Rule(tuple(rule["verbs"]), tuple(rule["resources"]), tuple(rule.get("resourceNames", ()))))
    return tuple(found)


def rendered(example: str) -> list[dict[str, Any]]:
    """The objects of a golden render of the chart."""
    return [o for o in yaml.safe_load_all((EXAMPLES / example / "rendered.yaml").read_text()) if o]


def allowed(rules: Sequence[Rule], verb: str, resource: str, name: str) -> bool:
    """Rules only add up."""
    return any(rule.allows(verb, resource, name) for rule in rules)
