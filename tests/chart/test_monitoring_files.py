"""The dashboards and rules under files/ are embedded as they are, all of them."""

from __future__ import annotations

import json
import re
import urllib.parse
from pathlib import Path

import jsonschema
import promql_parser
import pytest
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


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_traces_are_found_whatever_the_release_is_called(path: Path) -> None:
    text = urllib.parse.unquote(path.read_text()).replace("\\", "")
    services = re.findall(r"resource\.service\.name\s*(\S+)\s*\"([^\"]*)\"", text)
    assert services
    assert set(services) == {("=~", "${service:pipe}")}
    variables = {v["name"]: v for v in json.loads(path.read_text())["templating"]["list"]}
    assert variables["service"]["datasource"]["type"] == "tempo"
    name = next(e for e in render().container()["env"] if e["name"] == "OTEL_SERVICE_NAME")["value"]
    assert name == "demo-weir"
    assert re.fullmatch(variables["service"]["allValue"], name)


def series_labels(release: str) -> dict[str, str]:
    """Labels of this release's series: the target's, and those of the pod that the ServiceMonitor copies."""
    rendered = render("gpu-shared-pvc", release=release)
    pod = rendered.workload()["spec"]["template"]["metadata"]["labels"]
    copied = rendered.one("ServiceMonitor")["spec"]["podTargetLabels"]
    labels = {re.sub(r"[^a-zA-Z0-9_]", "_", key): pod[key] for key in copied}
    return labels | {"namespace": "llm", "pod": f"{rendered.workload()['metadata']['name']}-5d9f-abcde"}


@pytest.mark.parametrize("other", ["weir-canary", "weir-2", "canary-weir"])
def test_scaling_counts_the_pods_of_its_own_release_only(other: str) -> None:
    triggers = render("keda", release="weir").one("ScaledObject")["spec"]["triggers"]
    queries = [t["metadata"]["query"] for t in triggers if t["type"] == "prometheus"]
    assert len(queries) == 2
    for query in queries:
        (selector,) = re.findall(r"\{(.*?)\}", query)
        matchers = promql_parser.parse(f"up{{{selector}}}").matchers.matchers
        assert all(matcher.op == promql_parser.MatchOp.Equal for matcher in matchers)
        wanted = {matcher.name: matcher.value for matcher in matchers}
        assert wanted.items() <= series_labels("weir").items()
        assert not wanted.items() <= series_labels(other).items()


def test_a_subchart_of_the_same_release_is_another_service() -> None:
    def selector(values: dict[str, object]) -> str:
        triggers = render("keda", values).one("ScaledObject")["spec"]["triggers"]
        return str(triggers[0]["metadata"]["query"])

    assert selector({"nameOverride": "small"}) != selector({"nameOverride": "large"})
