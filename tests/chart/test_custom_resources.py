"""Objects of operators and gateways hold only fields that exist there."""

from __future__ import annotations

import jsonschema
import pytest

from tests.chart.custom_schemas import SCHEMAS
from tests.chart.rendering import CI_NAMES, render
from tests.chart.test_every_render import CUSTOM_GROUPS


@pytest.mark.parametrize("ci", CI_NAMES)
def test_every_custom_object_fits_its_schema(ci: str) -> None:
    for obj in render(ci).objects:
        if obj["apiVersion"] in CUSTOM_GROUPS:
            jsonschema.validate(obj, SCHEMAS[obj["kind"]])


def test_every_schema_is_used_by_some_render() -> None:
    values = {"monitoring": {"prometheusRule": {"enabled": True}}}
    rule = render("default", values).one("PrometheusRule")
    jsonschema.validate(rule, SCHEMAS["PrometheusRule"])
    kinds = {obj["kind"] for ci in CI_NAMES for obj in render(ci).objects}
    assert set(SCHEMAS) <= kinds | {"PrometheusRule"}
