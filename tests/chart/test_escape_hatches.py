"""What has no value of its own goes through extra*, and whatever that is, nothing of the chart's is written twice."""

from __future__ import annotations

from tests.chart.rendering import CHART, CI_NAMES, Tree, render
from tests.chart.test_values_of_every_type import accept


def test_the_pod_takes_further_fields() -> None:
    further: Tree = {
        "dnsConfig": {"options": [{"name": "ndots", "value": 2}]},
        "hostAliases": [{"ip": "192.0.2.1", "hostnames": ["hub.example.com"]}],
        "schedulerName": "other",
    }
    rendered = render("default", {"extraPodSpec": further})
    accept(rendered)
    assert rendered.pod()["dnsConfig"] == {"options": [{"name": "ndots", "value": "2"}]}
    assert rendered.pod()["hostAliases"] == further["hostAliases"]
    assert rendered.pod()["schedulerName"] == "other"


def test_every_field_that_the_chart_writes_into_a_pod_is_refused_there() -> None:
    check = (CHART / "templates" / "_check.tpl").read_text()
    for ci in CI_NAMES:
        for field in render(ci).pod():
            assert f'"{field}"' in check, field


def test_the_sidecar_takes_further_variables() -> None:
    rendered = render("default", {"sidecar": {"extraEnv": [{"name": "WEIR_SIDECAR_LOG_LEVEL", "value": "debug"}]}})
    assert {"name": "WEIR_SIDECAR_LOG_LEVEL", "value": "debug"} in rendered.container("sidecar")["env"]


def test_a_variable_of_ones_own_takes_the_place_of_the_charts() -> None:
    rendered = render("default", {"extraEnv": [{"name": "OTEL_SERVICE_NAME", "value": "mine"}]})
    accept(rendered)
    assert [e for e in rendered.container()["env"] if e["name"] == "OTEL_SERVICE_NAME"] == [
        {"name": "OTEL_SERVICE_NAME", "value": "mine"}
    ]


def test_a_setting_is_not_expanded_as_a_reference_to_another_variable() -> None:
    rendered = render("default", {"model": {"name": "$(HOME)"}})
    assert rendered.settings()["WEIR_SERVED_MODEL_NAME"] == "$$(HOME)"
