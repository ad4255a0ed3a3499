"""ValidatingAdmissionPolicies, evaluated with a CEL interpreter as the API server's admission does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import celpy
from celpy.adapter import json_to_cel
from celpy.celtypes import Value as CelValue
from celpy.evaluation import CELEvalError

Tree = dict[str, Any]


@dataclass(frozen=True)
class Request:
    """An update of an object: who asks, and the object before and after."""

    user: Tree
    old: Tree
    new: Tree


def evaluate(expression: str, scope: dict[str, CelValue]) -> CelValue:
    """The value of an expression. Raises CELEvalError."""
    environment = celpy.Environment()
    return environment.program(environment.compile(expression)).evaluate(scope)


def denial(policy: Tree, request: Request) -> str | None:
    """The message of the first validation that fails; None when the request is admitted or not matched."""
    spec = policy["spec"]
    scope = {
        "request": json_to_cel({"operation": "UPDATE", "userInfo": request.user}),
        "object": json_to_cel(request.new),
        "oldObject": json_to_cel(request.old),
    }
    if not all(evaluate(condition["expression"], scope) for condition in spec.get("matchConditions", [])):
        return None
    variables: dict[str, Any] = {}
    for variable in spec.get("variables", []):
        try:
            variables[variable["name"]] = evaluate(
                variable["expression"], scope | {"variables": celpy.celtypes.MapType(_keys(variables))}
            )
        except CELEvalError:
            # An expression that uses it fails as well, and with failurePolicy Fail so does the request.
            assert spec["failurePolicy"] == "Fail"
    scope["variables"] = celpy.celtypes.MapType(_keys(variables))
    for validation in spec["validations"]:
        try:
            passed = bool(evaluate(validation["expression"], scope))
        except CELEvalError:
            passed = False
        if not passed:
            message: str = validation["message"]
            return message
    return None


def _keys(variables: dict[str, Any]) -> dict[Any, Any]:
    return {celpy.celtypes.StringType(name): value for name, value in variables.items()}
