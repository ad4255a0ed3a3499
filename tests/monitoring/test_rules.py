"""The alert rules under promtool: its checks, and the unit tests of rules_test.yaml."""

from __future__ import annotations

import subprocess
from pathlib import Path

import yaml
from weir.telemetry.metrics import Metrics

from tests.monitoring.tools import program

HERE = Path(__file__).parent
RULES = HERE.parents[1] / "helm/weir/files/rules/weir.yaml"


def promtool(*arguments: str, text: bytes | None = None) -> str:
    """The output of promtool; the test fails with it when promtool does."""
    result = subprocess.run([program("promtool"), *arguments], input=text, capture_output=True, check=False)
    output = (result.stdout + result.stderr).decode()
    assert result.returncode == 0, output
    return output


def test_promtool_accepts_the_rules() -> None:
    assert "rules found" in promtool("check", "rules", "--lint-fatal", str(RULES))


def test_every_alert_fires_when_it_should_and_only_then(tmp_path: Path) -> None:
    tests = (HERE / "rules_test.yaml").read_text()
    (tmp_path / "rules_test.yaml").write_text(tests.replace("rule_files: [RULES]", f"rule_files: ['{RULES}']"))
    promtool("test", "rules", str(tmp_path / "rules_test.yaml"))
    fired = {
        case["alertname"]
        for test in yaml.safe_load(tests)["tests"]
        for case in test["alert_rule_test"]
        if case["exp_alerts"]
    }
    groups = yaml.safe_load(RULES.read_text())["groups"]
    assert fired == {rule["alert"] for group in groups for rule in group["rules"] if "alert" in rule}


def test_promtool_finds_nothing_wrong_with_the_names_and_types_of_our_metrics() -> None:
    promtool("check", "metrics", text=Metrics("tiny", vllm_names=False).text())
