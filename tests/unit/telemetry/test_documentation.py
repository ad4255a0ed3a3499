"""docs/telemetry.md names every metric, attribute and setting, and nothing that is not there."""

from __future__ import annotations

import re
from pathlib import Path

from weir.config import TelemetrySettings, public_name
from weir.telemetry import attributes
from weir.telemetry.credential_metrics import CredentialMetrics
from weir.telemetry.engine_metrics import EngineMetrics
from weir.telemetry.request_metrics import RequestMetrics
from weir.telemetry.trace_metrics import TraceMetrics
from weir.telemetry.vllm_metrics import vllm_families

TEXT = (Path(__file__).parents[3] / "docs/telemetry.md").read_text()
CODE = set(re.findall(r"`([^`\n]+)`", TEXT))


def test_every_metric_is_documented() -> None:
    engine, requests = EngineMetrics(), RequestMetrics()
    families = [*engine.families(), *requests.families(), *TraceMetrics().families(), *CredentialMetrics().families()]
    exported = {family.name for family in families} | {"weir_engine_info"}
    assert {name for name in CODE if re.fullmatch(r"weir_\w+", name)} == exported
    aliases = {family.name for family in vllm_families(engine, requests, "tiny")}
    assert {name for name in CODE if name.startswith("vllm:")} == aliases


def test_every_label_value_is_documented() -> None:
    for family in RequestMetrics().families() + TraceMetrics().families():
        if family.name != "weir_requests_total":
            for labels, _ in family.series:
                assert {value for _, value in labels} <= CODE, family.name


def test_every_span_attribute_is_documented() -> None:
    constants = {name: value for name, value in vars(attributes).items() if name.isupper()}
    named = {value for value in constants.values() if isinstance(value, str)} | set(attributes.STEP_PHASE.values())
    documented = {name for name in CODE if re.fullmatch(r"(weir|rpc|gen_ai|error)\.[a-z_.]+", name)}
    assert documented == named


def test_every_trace_setting_is_documented() -> None:
    settings = {public_name(name) for name in TelemetrySettings.model_fields if name.startswith("trace_")}
    assert settings == {name for name in CODE if re.fullmatch(r"trace_(?!id)\w+", name)}
