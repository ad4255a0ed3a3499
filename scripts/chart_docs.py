"""Write what follows from helm/weir/values.yaml: values.schema.json, the table in README.md, templates/_values.tpl.

In values.yaml a comment that starts with `--` describes the next key; `@schema {...}` adds JSON schema to what its
default implies. With `--check` nothing is written, and a file that is out of date makes the exit status 1.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from weir.config import Settings, public_name

CHART = Path(__file__).resolve().parent.parent / "helm" / "weir"
TABLE = re.compile(r"(<!-- values -->\n).*(<!-- /values -->\n)", re.DOTALL)
NUMBER_OR_STRING = {"type": ["number", "string"]}
Schema = dict[str, Any]
# What a value is allowed to be where its default ({}, [], "") does not say it: `@schema {like: NAME}`.
QUANTITY: Schema = {
    "type": ["number", "string"],
    "exclusiveMinimum": 0,
    "pattern": "^[0-9]+(\\.[0-9]+)?([eE][0-9]+|[KMGTPE]i|[mkMGTPE])?$",
}
LABEL_KEY = "^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
SCALAR: Schema = {"type": ["string", "number", "boolean", "null"]}
LABEL_VALUE: Schema = SCALAR | {"pattern": "^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$", "maxLength": 63}
NAME: Schema = {"type": "string", "minLength": 1}
OBJECT: Schema = {"type": ["object", "null"]}
OBJECTS: Schema = {"type": ["array", "null"], "items": {"type": "object", "minProperties": 1}}
QUANTITIES: Schema = {"type": ["object", "null"], "additionalProperties": QUANTITY}
SHAPES: dict[str, Schema] = {
    "object": OBJECT,
    "objects": OBJECTS,
    "labels": OBJECT | {"propertyNames": {"pattern": LABEL_KEY}, "additionalProperties": LABEL_VALUE},
    "annotations": OBJECT | {"propertyNames": {"pattern": LABEL_KEY}, "additionalProperties": SCALAR},
    "variables": {
        "type": ["array", "null"],
        "items": {
            "type": "object",
            "required": ["name"],
            "additionalProperties": False,
            "properties": {"name": NAME, "value": SCALAR, "valueFrom": {"type": "object", "minProperties": 1}},
        },
    },
    "quantity": QUANTITY,
    "resources": OBJECT
    | {
        "additionalProperties": False,
        "properties": {"requests": QUANTITIES, "limits": QUANTITIES, "claims": OBJECTS},
    },
    "countOrPercent": {"type": ["integer", "string"], "minimum": 0, "maximum": 1000000, "pattern": "^[0-9]+%$"},
    "strategy": OBJECT
    | {"additionalProperties": False, "properties": {"type": {"type": "string"}, "rollingUpdate": OBJECT}},
    "metrics": {"type": ["array", "null"], "items": {"type": "object", "required": ["type"]}},
    "spread": {
        "type": ["array", "null"],
        "items": {"type": "object", "required": ["maxSkew", "topologyKey", "whenUnsatisfiable"]},
    },
    "issuer": OBJECT | {"additionalProperties": False, "properties": {"name": NAME, "kind": NAME, "group": NAME}},
}


@dataclass(frozen=True, slots=True)
class Value:
    """One value of the chart: its place, its default, its description and the schema given for it."""

    path: tuple[str, ...]
    default: Any
    description: str
    schema: dict[str, Any]

    @property
    def is_section(self) -> bool:
        """Whether it is a mapping whose keys are values themselves."""
        return not self.description


def read_values(text: str) -> list[Value]:
    """All values in the order of the file. Raises ValueError for a leaf without a description."""
    lines = text.splitlines()
    values = list(_walk(yaml.compose(text), yaml.safe_load(text), lines, ()))
    bare = [".".join(v.path) for v in values if v.is_section and not (isinstance(v.default, dict) and v.default)]
    if bare:
        raise ValueError(f"values without a description: {', '.join(bare)}")
    return values


def _walk(node: yaml.Node | None, default: Any, lines: list[str], path: tuple[str, ...]) -> Iterator[Value]:
    assert isinstance(node, yaml.MappingNode)
    for key, child in node.value:
        description, schema = _comment(lines, key.start_mark.line)
        here, value = (*path, key.value), default[key.value]
        yield Value(here, value, description, schema)
        if not description and isinstance(child, yaml.MappingNode):
            yield from _walk(child, value, lines, here)


def _comment(lines: list[str], line: int) -> tuple[str, dict[str, Any]]:
    block: list[str] = []
    for text in reversed(lines[:line]):
        if not text.strip().startswith("#"):
            break
        block.insert(0, text.strip().removeprefix("#").strip())
    schema: dict[str, Any] = {}
    words: list[str] = []
    for text in block:
        if text.startswith("@schema "):
            schema = yaml.safe_load(text.removeprefix("@schema "))
        elif text.startswith("-- ") or words:
            words.append(text.removeprefix("-- "))
    return " ".join(words), schema


def schema_of(values: list[Value]) -> Schema:
    """JSON schema of the chart's values. The top level stays open for `global` and the values of a parent chart."""
    root: Schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Values of the weir chart",
        "type": "object",
        "properties": {},
    }
    for value in values:
        parent = root
        for step in value.path[:-1]:
            parent = parent["properties"][step]
        if value.is_section:
            # Templates explain a missing mapping better than a schema does, so null passes here.
            item: Schema = {"type": ["object", "null"], "additionalProperties": False, "properties": {}}
        else:
            item = {"description": value.description} | _shape(value)
            item["default"] = value.default
        parent["properties"][value.path[-1]] = item
    return root


def _shape(value: Value) -> Schema:
    given = dict(value.schema)
    like = given.pop("like", None)
    if like == "settings":
        sections = {section: _settings_schema(section) for section in Settings.model_fields}
        return OBJECT | {"additionalProperties": False, "properties": sections}
    return (SHAPES[like] if like else _implied(value.default)) | given


def _implied(default: Any) -> Schema:
    if isinstance(default, bool):
        return {"type": "boolean"}
    if isinstance(default, int):
        return {"type": "integer"}
    if isinstance(default, float):
        return {"type": "number"}
    if isinstance(default, str):
        return {"type": ["string", "null"]} if default == "" else {"type": "string"}
    return {"type": ["array", "null"]} if isinstance(default, list) else {"type": ["object", "null"]}


def _settings_schema(section: str) -> Schema:
    """Names and types of one section of `weir serve`'s settings, so that a typing error shows before a pod starts."""
    fields = type(getattr(Settings(), section)).model_fields
    schema = type(getattr(Settings(), section)).model_json_schema()["properties"]
    properties = {}
    for name, field in fields.items():
        given = schema[name]
        # A field with a unit takes "30s" or "2GiB" as well as a number.
        kinds = NUMBER_OR_STRING if public_name(name) != name else {k: given[k] for k in _CONSTRAINTS if k in given}
        properties[public_name(name)] = {"description": field.description} | kinds
    return {"type": ["object", "null"], "additionalProperties": False, "properties": properties}


_CONSTRAINTS = ("type", "enum", "anyOf", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")


def table_of(values: list[Value]) -> str:
    """Markdown table of all values."""
    rows = ["| value | default | what it does |", "|---|---|---|"]
    for value in values:
        if value.is_section:
            continue
        default = json.dumps(value.default).replace("|", "\\|")
        default = f"`{default}`" if len(default) <= 60 else "see values.yaml"
        allowed = value.schema.get("enum")
        options = f" One of {', '.join(f'`{a}`' for a in allowed if a)}." if allowed else ""
        text = value.description.replace("|", "\\|")
        rows.append(f"| `{'.'.join(value.path)}` | {default} | {text}{options} |")
    return "\n".join(rows) + "\n"


def helper_of(values: list[Value]) -> str:
    """Template with the keys of every mapping, by the path of the mapping."""
    keys: dict[str, list[str]] = {".": ["global"]}
    for value in values:
        if value.is_section:
            keys[".".join(value.path)] = []
        keys[".".join(value.path[:-1]) or "."].append(value.path[-1])
    known = "".join(f"{json.dumps(path)}: {json.dumps(names)}\n" for path, names in keys.items())
    required = "".join(f"- {'.'.join(v.path)}\n" for v in values if not v.is_section and not _may_be_null(v))
    return (
        "{{/* Generated by scripts/chart_docs.py: the keys of every mapping in values.yaml, by its path. */}}\n"
        f'{{{{- define "weir.knownValues" -}}}}\n{known}{{{{- end -}}}}\n\n'
        "{{/* The values that may not be null. */}}\n"
        f'{{{{- define "weir.requiredValues" -}}}}\n{required}{{{{- end -}}}}\n'
    )


def _may_be_null(value: Value) -> bool:
    return "null" in _shape(value)["type"] or value.default == ""


def outputs() -> dict[Path, str]:
    """Every generated file and what it should hold."""
    values = read_values((CHART / "values.yaml").read_text())
    readme = CHART / "README.md"
    return {
        CHART / "values.schema.json": json.dumps(schema_of(values), indent=2) + "\n",
        readme: TABLE.sub(lambda m: m[1] + table_of(values) + m[2], readme.read_text()),
        CHART / "templates" / "_values.tpl": helper_of(values),
    }


def main() -> int:
    """Write or check the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only say which files are out of date")
    check = parser.parse_args().check
    stale = [path for path, text in outputs().items() if not path.exists() or path.read_text() != text]
    for path in stale:
        if check:
            sys.stdout.write(f"{path} is out of date: run `make chart-docs`\n")
        else:
            path.write_text(outputs()[path])
            sys.stdout.write(f"wrote {path}\n")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
