"""Render the chart with a real Helm, once for each set of values, and look at what comes out."""

from __future__ import annotations

import functools
import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "helm" / "weir"
CI_FILES = sorted((CHART / "ci").glob("*-values.yaml"))
CI_NAMES = [path.name.removesuffix("-values.yaml") for path in CI_FILES]
HELM_MAJORS = (3, 4)
KUBE_VERSION = "1.32.0"
Tree = dict[str, Any]


class RenderError(Exception):
    """Helm refused the values; the text is Helm's."""


class StrictLoader(yaml.SafeLoader):
    """Loads YAML as the API server does: a key that comes twice is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Raise on a duplicate key."""
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        twice = {key for key in keys if keys.count(key) > 1}
        if twice:
            raise yaml.constructor.ConstructorError(None, None, f"keys {twice} come twice", node.start_mark)
        return super().construct_mapping(node, deep)


@dataclass(frozen=True)
class Rendered:
    """The objects of one render, and the text they came from."""

    text: str
    objects: tuple[Tree, ...]

    def all(self, kind: str) -> list[Tree]:
        """Objects of a kind."""
        return [o for o in self.objects if o["kind"] == kind]

    def one(self, kind: str, name: str | None = None) -> Tree:
        """The only object of a kind (and name)."""
        found = [o for o in self.all(kind) if name is None or o["metadata"]["name"] == name]
        assert len(found) == 1, f"{len(found)} objects of kind {kind} {name or ''}"
        return found[0]

    def workload(self) -> Tree:
        """The Deployment or the StatefulSet."""
        found = self.all("Deployment") + self.all("StatefulSet")
        assert len(found) == 1
        workload: Tree = found[0]
        return workload

    def pod(self) -> Tree:
        """Spec of the serving pods."""
        spec: Tree = self.workload()["spec"]["template"]["spec"]
        return spec

    def container(self, name: str = "weir") -> Tree:
        """A container or init container of the serving pods."""
        found = [c for c in self.pod()["containers"] + self.pod().get("initContainers", []) if c["name"] == name]
        assert len(found) == 1, f"{len(found)} containers {name}"
        return found[0]

    def settings(self) -> dict[str, str]:
        """The settings of the server, as its environment."""
        return {e["name"]: e["value"] for e in self.container()["env"] if e["name"].startswith("WEIR_")}

    def job_pods(self) -> list[Tree]:
        """Pod templates of the Jobs: `metadata` and `spec`."""
        return [job["spec"]["template"] for job in self.all("Job")]


def helm_binary(major: int) -> Path:
    """Raises AssertionError that says how to get Helm."""
    path = ROOT / ".tools" / f"helm-{major}"
    assert path.exists(), f"{path} is missing: run `make tools`"
    return path


def render(
    ci: str = "default",
    values: Tree | None = None,
    *,
    helm: int = 4,
    kube: str = KUBE_VERSION,
    flags: tuple[str, ...] = (),
    release: str = "demo",
    namespace: str = "llm",
) -> Rendered:
    """Render with the values of a ci file, and `values` over them. Raises RenderError with Helm's message."""
    return _render(ci, json.dumps(values or {}), helm, kube, flags, release, namespace)


@functools.cache
def _render(
    ci: str, values: str, helm: int, kube: str, flags: tuple[str, ...], release: str, namespace: str
) -> Rendered:
    command: list[str | Path] = [
        helm_binary(helm),
        "template",
        release,
        CHART,
        "--namespace",
        namespace,
        "--kube-version",
        kube,
    ]
    command += ["--values", CHART / "ci" / f"{ci}-values.yaml", "--values", "-", *flags]
    done = subprocess.run(command, input=values, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        raise RenderError(done.stderr)
    objects = tuple(o for o in yaml.load_all(done.stdout, StrictLoader) if o is not None)
    return Rendered(done.stdout, objects)


def nested(path: tuple[str, ...], value: object) -> Tree:
    """{a: {b: value}} for (a, b)."""
    tree: object = value
    for step in reversed(path):
        tree = {step: tree}
    assert isinstance(tree, dict)
    return tree
