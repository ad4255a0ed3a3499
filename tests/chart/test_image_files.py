"""The Dockerfile: what a pod's life depends on, and what keeps the images small."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.chart.rendering import CHART, ROOT

DOCKERFILE = (ROOT / "Dockerfile").read_text()
TARGETS = ("cuda", "cpu", "sidecar")


def stage(name: str) -> str:
    """The instructions of one stage."""
    found = re.search(rf"^FROM \S+ AS {name}\n(.*?)(?=^FROM |\Z)", DOCKERFILE, re.MULTILINE | re.DOTALL)
    assert found is not None, f"no stage {name}"
    return found[1]


def test_hadolint_finds_nothing() -> None:
    hadolint = ROOT / ".venv" / "bin" / "hadolint"
    done = subprocess.run([hadolint, ROOT / "Dockerfile"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("target", TARGETS)
def test_the_entrypoint_is_the_process_itself_and_not_a_shell(target: str) -> None:
    assert 'ENTRYPOINT ["weir"]\n' in stage(target)
    assert re.search(r'^CMD \["(serve|sidecar)"\]$', stage(target), re.MULTILINE)


@pytest.mark.parametrize("target", TARGETS)
def test_the_user_is_the_one_of_the_pods_security_context(target: str) -> None:
    security = yaml.safe_load((CHART / "values.yaml").read_text())["podSecurityContext"]
    assert f"USER {security['runAsUser']}:{security['runAsGroup']}\n" in stage(target)
    assert f"useradd --uid {security['runAsUser']} " in stage("base")


def test_the_default_target_is_cuda() -> None:
    assert re.findall(r"^FROM \S+ AS (\S+)$", DOCKERFILE, re.MULTILINE)[-1] == "cuda"


@pytest.mark.parametrize("target", TARGETS)
def test_code_comes_after_packages_so_that_it_is_a_small_layer(target: str) -> None:
    copies = re.findall(r"^COPY --from=(\S+)", stage(target), re.MULTILINE)
    assert copies == [f"{target}-packages", "code"]


def test_the_sidecar_has_no_torch() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "list_requirements.py", "sidecar", "--file", ROOT / "pyproject.toml"],
        capture_output=True,
        text=True,
        check=True,
    )
    names = {re.split(r"[<>=]", line)[0] for line in done.stdout.splitlines()}
    assert {"grpcio", "kubernetes", "prometheus-client"} <= names
    assert not {"torch", "triton", "numpy", "transformers"} & names


def test_everything_that_is_copied_gets_past_the_dockerignore() -> None:
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = {
        word for line in re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE, re.MULTILINE) for word in line.split()[:-1]
    }
    for source in copied:
        assert (ROOT / source).exists()
        assert any(source == entry or source.startswith(f"{entry}/") for entry in allowed), source


@pytest.mark.parametrize("script", sorted((ROOT / "scripts").glob("*.sh")), ids=lambda path: path.name)
def test_the_scripts_are_whole_and_stop_at_the_first_error(script: Path) -> None:
    assert subprocess.run(["bash", "-n", script], check=False).returncode == 0
    assert "set -euo pipefail" in script.read_text()
    assert script.stat().st_mode & 0o111
