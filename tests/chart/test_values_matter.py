"""Every value of values.yaml changes some render: none is forgotten by the templates."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import yaml

from tests.chart.rendering import CHART, ROOT, nested, render

sys.path.insert(0, str(ROOT / "scripts"))
from chart_docs import Value, read_values

# The ci file in which a value takes effect, by the longest prefix of its path.
PLACES = {
    "": "default",
    "model.pvc": "existing-claim",
    "model.path": "existing-claim",
    "model.hf.revision": "gpu-shared-pvc",
    "model.cache": "gpu-shared-pvc",
    "model.cache.enabled": "default",
    "autoscaling": "hpa",
    "autoscaling.enabled": "default",
    "autoscaling.keda": "keda",
    "tls": "tls-cert-manager",
    "tls.secretName": "tls-secret",
    "auth": "tls-cert-manager",
    "networkPolicy": "tls-cert-manager",
    "serviceAccount.name": "image-model",
    "sidecar.readinessGate": "readiness-gate",
    "monitoring.serviceMonitor": "gpu-shared-pvc",
    "otlp": "gpu-shared-pvc",
}
DIGEST = "sha256:" + "1" * 64
# Another value than the default, where the type does not say one; a dict is merged over the ci file as it is.
OTHER: dict[str, Any] = {
    "preset": "cpu-small",
    "image.digest": DIGEST,
    "sidecar.image.digest": DIGEST,
    "model.source": {"model": {"source": "image", "path": "/m"}},
    "model.path": "elsewhere",
    "model.volume": {"model": {"source": "volume", "volume": {"emptyDir": {}}}},
    "fullnameOverride": "other",
    "model.hf.env": [{"name": "HF_ENDPOINT", "value": "https://hub.example.com"}],
    "model.cache.enabled": True,
    "model.cache.size": "51Gi",
    "model.cache.accessModes": ["ReadWriteMany", "ReadOnlyMany"],
    "settings": {"engine": {"max_running": 3}},
    "strategy": {"type": "Recreate"},
    "gpu.count": 0,
    "gpu.resourceName": "amd.com/gpu",
    "resources": {"requests": {"cpu": "17"}},
    "sidecar.resources": {"requests": {"cpu": "17m"}},
    "podDisruptionBudget.maxUnavailable": "40%",
    "autoscaling.type": {"autoscaling": {"type": "keda", "keda": {"prometheusAddress": "http://p"}}},
    "autoscaling.kvUse": 0.33,
    "autoscaling.extraMetrics": [{"type": "External", "external": {}}],
    "autoscaling.behavior": {"scaleDown": {"stabilizationWindowSeconds": 1}},
    "autoscaling.keda.extraSpec": {"idleReplicaCount": 0},
    "topologySpreadConstraints": [{"maxSkew": 2, "topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule"}],
    "tls.enabled": {"tls": {"enabled": False, "clientAuth": {"enabled": False}, "certManager": {"enabled": False}}},
    "tls.certManager.enabled": {"tls": {"secretName": "demo-weir-tls", "certManager": {"enabled": False}}},
    "tls.certManager.issuerRef": {"name": "other"},
    "tls.certManager.extraDnsNames": ["other.example.com"],
    "networkPolicy.clients": [{"podSelector": {"matchLabels": {"a": "b"}}}],
    "networkPolicy.scrapers": [{"podSelector": {"matchLabels": {"a": "b"}}}],
    "serviceAccount.create": {"serviceAccount": {"create": False, "name": "other"}},
    "podSecurityContext": {"runAsUser": 7},
    "containerSecurityContext": {"readOnlyRootFilesystem": False},
    "sidecar.admissionPolicy": True,
    "sidecar.readinessGate.maxWaitSeconds": 99,
    "monitoring.serviceMonitor.interval": "31s",
    "otlp.endpoint": "https://other.example.com",
    "extraArgs": ["--trace-phases"],
    "extraObjects": [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "other"}}],
}
# What must be on, besides the ci file, for values below these paths to take effect.
SWITCHES: dict[str, Any] = {
    "monitoring.prometheusRule": {"monitoring": {"prometheusRule": {"enabled": True}}},
    "monitoring.dashboards": {"monitoring": {"dashboards": {"enabled": True}}},
}


def place(path: str) -> str:
    return PLACES[max((prefix for prefix in PLACES if path.startswith(prefix)), key=len)]


def other(value: Value, ci: str) -> Any:
    path = ".".join(value.path)
    if path in OTHER:
        return OTHER[path]
    if "enum" in value.schema:
        return next(choice for choice in value.schema["enum"] if choice not in (value.default, ""))
    match value.default:
        case bool():
            given: Any = yaml.safe_load((CHART / "ci" / f"{ci}-values.yaml").read_text())
            for step in value.path:
                given = given.get(step, {}) if isinstance(given, dict) else {}
            return not (value.default if given == {} else given)
        case int():
            return value.default + 3
        case float():
            return value.default / 2
        case str():
            return f"{value.default}7"
        case list():
            return [{"name": "another"}]
        case _:
            return {"another": "thing"}


LEAVES = [value for value in read_values((CHART / "values.yaml").read_text()) if not value.is_section]


@pytest.mark.parametrize("value", LEAVES, ids=lambda v: ".".join(v.path))
def test_the_value_changes_a_render(value: Value) -> None:
    path = ".".join(value.path)
    ci = place(path)
    changed = other(value, ci)
    base: Any = next((values for prefix, values in SWITCHES.items() if path.startswith(prefix)), {})
    if path.endswith("enabled"):
        base, changed = ({}, base) if base else (base, changed)
    whole = isinstance(changed, dict) and set(changed) == {value.path[0]} and len(value.path) > 1
    over = changed if whole else nested(value.path, changed)
    assert render(ci, merged(base, over)).text != render(ci, base).text


def merged(under: Any, over: Any) -> Any:
    if not (isinstance(under, dict) and isinstance(over, dict)):
        return over
    return under | {key: merged(under.get(key), value) for key, value in over.items()}
