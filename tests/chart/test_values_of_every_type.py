"""Each value, given what YAML makes of a careless hand: an object the API server takes, or a refusal in a sentence."""

from __future__ import annotations

import functools
import json
import re
import sys
from typing import Any

import jsonschema
import kubernetes_validate
import pytest

from tests.chart.custom_schemas import SCHEMAS
from tests.chart.rendering import CHART, ROOT, Rendered, RenderError, Tree, nested, render
from tests.chart.test_every_render import CUSTOM_GROUPS
from tests.chart.test_values_matter import SWITCHES, merged, place

sys.path.insert(0, str(ROOT / "scripts"))
from chart_docs import Value, read_values

SCALARS: list[Any] = [1000000, True, "1e6", ""]
LEAVES = [value for value in read_values((CHART / "values.yaml").read_text()) if not value.is_section]
# A number, as Go writes a float64 that nobody converted.
EXPONENT = re.compile(r"(?<![\w.])\d(\.\d+)?e\+\d\d(?!\w)")
# resource.Quantity of k8s.io/apimachinery.
QUANTITY = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?")
NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
LABEL = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")


def accept(rendered: Rendered) -> None:
    """Raise unless a strict API server would take every object."""
    assert not EXPONENT.search(rendered.text.replace('"1e6"', "")), EXPONENT.search(rendered.text)
    for obj in rendered.objects:
        fits_schema(json.dumps(obj))
        check_metadata(obj["metadata"])
        check_maps(obj)
    for pod in [rendered.workload()["spec"]["template"], *rendered.job_pods()]:
        check_metadata({"name": "pod"} | pod["metadata"])
        check_pod(pod["spec"])


@functools.cache
def fits_schema(text: str) -> None:
    """Raise unless the object is one of its kind; the same object is looked at once."""
    obj = json.loads(text)
    if obj["apiVersion"] in CUSTOM_GROUPS:
        jsonschema.validate(obj, SCHEMAS[obj["kind"]])
    else:
        kubernetes_validate.validate(obj, "1.32", strict=True)


def check_metadata(metadata: Tree) -> None:
    assert NAME.fullmatch(metadata["name"])
    for value in metadata.get("labels", {}).values():
        assert LABEL.fullmatch(value), value
        assert len(value) <= 63


def check_maps(node: Any) -> None:
    """Maps that are strings to strings wherever they stand, and quantities that can be parsed."""
    if isinstance(node, list):
        for item in node:
            check_maps(item)
    elif isinstance(node, dict):
        for key, value in node.items():
            if key in ("labels", "annotations", "matchLabels", "nodeSelector", "data") and isinstance(value, dict):
                assert all(isinstance(text, str) for text in value.values()), (key, value)
            if key in ("requests", "limits") and isinstance(value, dict):
                assert all(QUANTITY.fullmatch(str(text)) for text in value.values()), value
            if key == "sizeLimit":
                assert QUANTITY.fullmatch(str(value)), value
            check_maps(value)


def check_pod(spec: Tree) -> None:
    names = [volume["name"] for volume in spec.get("volumes", [])]
    assert len(names) == len(set(names))
    for container in spec["containers"] + spec.get("initContainers", []):
        variables = container.get("env", [])
        assert len({v["name"] for v in variables}) == len(variables), (
            "server-side apply refuses a name that comes twice"
        )
        for variable in variables:
            assert isinstance(variable.get("value", ""), str)
        assert all(isinstance(argument, str) for argument in container.get("args", []))
        assert re.fullmatch(r"[a-z0-9][a-z0-9./-]*(:[\w][\w.-]*|@sha256:[0-9a-f]{64})", container["image"])


def accepted_or_refused(ci: str, values: Tree, path: str) -> Rendered | None:
    rendered, refusal = render_or_refusal(ci, values)
    if rendered is None:
        for accident in ("nil pointer", "wrong type", "error converting YAML", "YAML parse error"):
            assert accident not in refusal
        assert path.rpartition(".")[2] in refusal or "values:" in refusal, refusal
    else:
        accept(rendered)
    return rendered


def render_or_refusal(ci: str, values: Tree) -> tuple[Rendered | None, str]:
    try:
        return render(ci, values), ""
    except RenderError as refusal:
        return None, str(refusal)


def spot(value: Value) -> tuple[str, Tree]:
    """The ci file, and what must be on besides, where a value takes effect."""
    path = ".".join(value.path)
    return place(path), next((values for prefix, values in SWITCHES.items() if path.startswith(prefix)), {})


@pytest.mark.parametrize("given", SCALARS, ids=json.dumps)
@pytest.mark.parametrize("value", LEAVES, ids=lambda v: ".".join(v.path))
def test_a_scalar(value: Value, given: Any) -> None:
    ci, base = spot(value)
    accepted_or_refused(ci, merged(base, nested(value.path, given)), ".".join(value.path))


STRINGS = [
    value
    for value in LEAVES
    if value.schema.get("like") in ("labels", "annotations") or value.path == ("otlp", "resourceAttributes")
]


@pytest.mark.parametrize("value", STRINGS, ids=lambda v: ".".join(v.path))
def test_an_entry_of_a_map_of_strings_keeps_how_it_was_written(value: Value) -> None:
    ci, base = spot(value)
    given = {"example.com/n": 1000000, "example.com/b": True, "example.com/s": "1e6", "example.com/e": ""}
    rendered = render(ci, merged(base, nested(value.path, given)))
    accept(rendered)
    if value.path[0] == "otlp":
        assert "example.com/n=1000000" in rendered.text
        return
    wanted = {"example.com/n": "1000000", "example.com/b": "true", "example.com/s": "1e6", "example.com/e": ""}
    assert any(wanted.items() <= found.items() for found in maps(rendered.objects))


def maps(node: Any) -> list[dict[str, Any]]:
    if isinstance(node, (list, tuple)):
        return [found for item in node for found in maps(item)]
    if isinstance(node, dict):
        return [node] + [found for item in node.values() for found in maps(item)]
    return []


VARIABLES = [value for value in LEAVES if value.schema.get("like") == "variables"]


@pytest.mark.parametrize("given", SCALARS, ids=json.dumps)
@pytest.mark.parametrize("value", VARIABLES, ids=lambda v: ".".join(v.path))
def test_a_variable(value: Value, given: Any) -> None:
    rendered = render("default", nested(value.path, [{"name": "GIVEN", "value": given}]))
    accept(rendered)
    wanted = {1000000: "1000000", True: "true"}.get(given, given)
    assert {"name": "GIVEN", "value": wanted} in maps(rendered.objects)


LISTS = [value for value in LEAVES if isinstance(value.default, list)]


@pytest.mark.parametrize("given", SCALARS, ids=json.dumps)
@pytest.mark.parametrize("value", LISTS, ids=lambda v: ".".join(v.path))
def test_an_item_of_a_list(value: Value, given: Any) -> None:
    ci, base = spot(value)
    accepted_or_refused(ci, merged(base, nested(value.path, [given])), ".".join(value.path))


DEEPER: dict[str, Tree] = {
    "tolerations": {"tolerations": [{"key": "a", "operator": "Equal", "value": None, "tolerationSeconds": 1000000}]},
    "node affinity": {
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "In", "values": [None]}]}]
                }
            }
        }
    },
    "spread": {
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "a",
                "whenUnsatisfiable": "DoNotSchedule",
                "labelSelector": {"matchLabels": {"a": None}},
            }
        ]
    },
    "peers": {"networkPolicy": {"enabled": True, "clients": [{"podSelector": {"matchLabels": {"a": None}}}]}},
    "a container": {
        "extraContainers": [
            {"name": "more", "image": "more:1", "args": [None], "env": [{"name": "A", "value": None}]},
        ]
    },
    "arguments": {"extraArgs": [None]},
    "a volume": {"extraVolumes": [{"name": "v", "csi": {"driver": "d", "volumeAttributes": {"a": None}}}]},
    "limits": {"resources": {"limits": {"memory": None}}},
    "a setting": {"settings": {"engine": {"max_batch_tokens": None}}},
    "a size in the settings": {"settings": {"engine": {"kv_memory": None}}},
    "the uid": {"podSecurityContext": {"runAsUser": None}},
}


def filled(node: Any, given: Any) -> Any:
    if isinstance(node, dict):
        return {key: filled(value, given) for key, value in node.items()}
    if isinstance(node, list):
        return [filled(value, given) for value in node]
    return given if node is None else node


@pytest.mark.parametrize("given", [1000000, True, "1e6"], ids=json.dumps)
@pytest.mark.parametrize("place", DEEPER)
def test_below_a_value_that_is_used_as_it_is(place: str, given: Any) -> None:
    rendered, refusal = render_or_refusal("default", filled(DEEPER[place], given))
    if rendered is None:
        assert "schema" in refusal or "values:" in refusal
    elif place != "the uid":
        accept(rendered)
    elif given == 1000000:
        accept(rendered)
        assert rendered.pod()["securityContext"]["runAsUser"] == given


def test_the_exact_number_reaches_the_span_attributes_and_the_server() -> None:
    values = {
        "otlp": {"resourceAttributes": {"cost.center": 4711000, "team": "a, b"}},
        "settings": {"engine": {"max_queue_tokens": 4711000, "overcommit": 0.25}},
    }
    rendered = render("default", values)
    attributes = next(e for e in rendered.container()["env"] if e["name"] == "OTEL_RESOURCE_ATTRIBUTES")["value"]
    assert attributes.endswith(",cost.center=4711000,team=a%2C%20b")
    assert rendered.settings()["WEIR_MAX_QUEUE_TOKENS"] == "4711000"
    assert rendered.settings()["WEIR_OVERCOMMIT"] == "0.25"
