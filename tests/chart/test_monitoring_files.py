"""The dashboards and rules under files/ are embedded as they are, all of them."""

from __future__ import annotations

import json

import jsonschema
import yaml

from tests.chart.custom_schemas import SCHEMAS
from tests.chart.rendering import CHART, render

DASHBOARDS = sorted((CHART / "files").rglob("*.json"))
RULES = sorted((CHART / "files").rglob("*.yaml"))


def test_every_dashboard_is_in_a_config_map_that_grafana_finds() -> None:
    values = {"monitoring": {"dashboards": {"enabled": True, "namespace": "grafana"}}}
    maps = [m for m in render("default", values).all("ConfigMap") if m["metadata"]["namespace"] == "grafana"]
    embedded = {name: json.loads(text) for m in maps for name, text in m["data"].items()}
    assert embedded == {path.name: json.loads(path.read_text()) for path in DASHBOARDS}
    assert len(embedded) >= 2
    for config_map in maps:
        assert config_map["metadata"]["labels"]["grafana_dashboard"] == "1"
        # The limit of an object in etcd, less some room for metadata.
        assert len(json.dumps(config_map)) < 1_000_000


def test_every_rule_group_is_in_the_prometheus_rule() -> None:
    values = {"monitoring": {"prometheusRule": {"enabled": True}}}
    rule = render("default", values).one("PrometheusRule")
    shipped = [group for path in RULES for group in yaml.safe_load(path.read_text())["groups"]]
    assert shipped
    assert rule["spec"]["groups"] == shipped
    jsonschema.validate(rule, SCHEMAS["PrometheusRule"])
