"""IPv4, IPv6 and both: nothing in the chart decides for one of them."""

from __future__ import annotations

import re

import pytest
from weir import config

from tests.chart.rendering import CI_NAMES, render


@pytest.mark.parametrize("ci", CI_NAMES)
def test_services_take_both_families_where_the_cluster_has_them(ci: str) -> None:
    for service in render(ci).all("Service"):
        assert service["spec"]["ipFamilyPolicy"] == "PreferDualStack"
        assert "ipFamilies" not in service["spec"]


def test_a_policy_of_ones_own_wins() -> None:
    values = {"service": {"extraSpec": {"ipFamilyPolicy": "SingleStack", "ipFamilies": ["IPv6"]}}}
    spec = render("default", values).one("Service", "demo-weir")["spec"]
    assert (spec["ipFamilyPolicy"], spec["ipFamilies"]) == ("SingleStack", ["IPv6"])


@pytest.mark.parametrize("ci", CI_NAMES)
def test_no_address_of_one_family_is_written_anywhere(ci: str) -> None:
    rendered = render(ci)
    server = config.load(env=rendered.settings()).server
    assert (server.host, server.metrics_host) == (config.ServerSettings().host, config.ServerSettings().metrics_host)
    pods = str([rendered.pod(), *rendered.job_pods()])
    assert not re.search(r"\b(0\.0\.0\.0|127\.0\.0\.1)\b", pods)
