"""Dashboards and alert rules: every query parses, and asks only for series, labels and buckets that are exported."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from weir.telemetry.metrics import Metrics

from tests.unit.telemetry.factories import EngineStub, engine_info

ROOT = Path(__file__).parents[3]
DASHBOARDS = sorted((ROOT / "helm/weir/files/dashboards").glob("*.json"))
RULES = ROOT / "helm/weir/files/rules/weir.yaml"
# Labels that Prometheus adds to what it scrapes in a cluster.
TARGET_LABELS = {"namespace", "pod", "job"}


def panels(path: Path) -> list[dict[str, Any]]:
    return [panel for panel in json.loads(path.read_text())["panels"] if panel["type"] != "row"]


def panel_queries(path: Path) -> Iterator[str]:
    for panel in panels(path):
        for target in panel["targets"]:
            if target["datasource"]["type"] == "prometheus":
                yield target["expr"].replace("$__rate_interval", "5m").replace("$namespace", ".*").replace("$pod", ".*")


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def all_queries() -> list[str]:
    return [query for path in DASHBOARDS for query in panel_queries(path)] + [rule["expr"] for rule in rules()]


def selectors(node: Any) -> Iterator[Any]:
    """Every vector selector below a node of the parsed query."""
    if isinstance(node, promql_parser.VectorSelector):
        yield node
        return
    for name in ("lhs", "rhs", "expr", "vector_selector", "args"):
        child = getattr(node, name, None)
        for one in child if isinstance(child, list) else [child]:
            if one is not None:
                yield from selectors(one)


@pytest.fixture(scope="module")
def exported() -> dict[str, list[dict[str, str]]]:
    """Label sets of every sample name."""
    metrics = Metrics("tiny")
    metrics.watch(EngineStub(), engine_info())
    found: dict[str, list[dict[str, str]]] = {}
    for family in text_string_to_metric_families(metrics.text().decode()):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample.labels)
    return found


def test_there_are_two_dashboards_with_a_query_in_every_panel() -> None:
    assert [path.name for path in DASHBOARDS] == ["weir_engine.json", "weir_service.json"]
    for path in DASHBOARDS:
        assert all(panel["targets"] for panel in panels(path))
        assert len(list(panel_queries(path))) > 20


@pytest.mark.parametrize("query", all_queries())
def test_a_query_asks_only_for_what_is_exported(query: str, exported: dict[str, list[dict[str, str]]]) -> None:
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    found = list(selectors(promql_parser.parse(query)))
    assert len(found) == len(re.findall(r"\b(?:weir|process)[_:][\w:]+(?=[{\[ )]|$)", query))
    for selector in found:
        if selector.name in recorded:
            continue
        labels = exported[selector.name]
        for matcher in selector.matchers.matchers:
            if matcher.name in TARGET_LABELS:
                continue
            matches = re.compile(matcher.value) if matcher.op == promql_parser.MatchOp.Re else None
            assert any(
                matches.fullmatch(have[matcher.name]) if matches else have[matcher.name] == matcher.value
                for have in labels
            ), f"no series of {selector.name} has {matcher.name}={matcher.value}"


def test_panels_do_not_overlap_and_stay_on_the_grid() -> None:
    for path in DASHBOARDS:
        taken: dict[tuple[int, int], str] = {}
        for panel in json.loads(path.read_text())["panels"]:
            place = panel["gridPos"]
            assert place["x"] + place["w"] <= 24
            for x in range(place["x"], place["x"] + place["w"]):
                for y in range(place["y"], place["y"] + place["h"]):
                    assert (x, y) not in taken, f"{panel['title']} lies on {taken[x, y]}"
                    taken[x, y] = panel["title"]


def test_ids_are_unique_and_every_panel_says_what_it_shows() -> None:
    for path in DASHBOARDS:
        everything = json.loads(path.read_text())["panels"]
        assert len({panel["id"] for panel in everything}) == len(everything)
        assert all(panel["description"] for panel in everything if panel["type"] != "row")


def test_step_heat_map_and_trace_links_are_there() -> None:
    engine = {panel["title"]: panel for panel in panels(DASHBOARDS[0])}
    assert engine["Step duration"]["type"] == "heatmap"
    assert engine["Step duration"]["links"][0]["url"].startswith("/explore?")
    service = {panel["title"]: panel for panel in panels(DASHBOARDS[1])}
    assert service["Time to first token"]["targets"][0]["exemplar"]


def test_every_alert_has_a_severity_and_a_section_in_the_runbook() -> None:
    sections = set(re.findall(r"^## (\w+)$", (ROOT / "docs/runbook.md").read_text(), re.MULTILINE))
    alerts = {rule["alert"]: rule for rule in rules() if "alert" in rule}
    assert set(alerts) == sections
    for name, rule in alerts.items():
        assert rule["annotations"]["runbook"] == f"docs/runbook.md#{name.lower()}"
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert rule["for"]
