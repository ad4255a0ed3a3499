"""Helm against the API server of the tests: install, upgrade, roll back."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import yaml

from tests.chart.api_server import ApiServer, Pods
from tests.chart.rendering import CHART, Tree, helm_binary


class HelmError(Exception):
    """Helm failed; the text is Helm's."""


@dataclass
class Cluster:
    """One release `demo` in namespace `llm`, by one major of Helm."""

    api: ApiServer
    helm: int
    folder: Path
    chart: Path = CHART

    def run(self, *arguments: str | Path, values: Tree | None = None) -> str:
        """Run Helm. Raises HelmError."""
        command: list[str | Path] = [helm_binary(self.helm), *arguments, "--namespace", "llm"]
        command += ["--kubeconfig", self.api.kubeconfig(self.folder)]
        if values is not None:
            command += ["--values", "-"]
        environment = {"HOME": str(self.folder), "PATH": os.environ["PATH"]}
        done = subprocess.run(
            command,
            input=json.dumps(values or {}),
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        if done.returncode:
            raise HelmError(done.stderr)
        return done.stdout

    def install(self, values: Tree) -> None:
        """Revision 1."""
        self.run("install", "demo", self.chart, "--disable-openapi-validation", values=values)
        self.api.autoscale()

    def upgrade(self, values: Tree) -> None:
        """The next revision."""
        self.run("upgrade", "demo", self.chart, "--disable-openapi-validation", values=values)
        self.api.autoscale()

    def rollback(self, revision: int) -> None:
        """Back to a revision."""
        self.run("rollback", "demo", str(revision))
        self.api.autoscale()

    def bump(self, version: str) -> None:
        """From now on, a chart of another version with the same templates."""
        copy = self.folder / f"chart-{version}"
        shutil.copytree(CHART, copy, ignore=shutil.ignore_patterns("examples", "ci"))
        about = yaml.safe_load((copy / "Chart.yaml").read_text())
        (copy / "Chart.yaml").write_text(yaml.safe_dump(about | {"version": version}))
        self.chart = copy

    @property
    def pods(self) -> Pods:
        """Pods of the Deployment."""
        return self.api.pods["demo-weir"]

    def replicas(self) -> int:
        """spec.replicas of the live Deployment."""
        number: int = self.api.objects["deployments", "llm", "demo-weir"]["spec"]["replicas"]
        return number
