"""The Dockerfile: what a pod's life depends on, and what keeps the images small."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import kubernetes
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
def test_code_is_the_last_layer_so_that_a_change_of_it_ships_nothing_else(target: str) -> None:
    layers = re.findall(r"^(?:COPY|RUN|ADD) .*$", stage(target), re.MULTILINE)
    assert layers[-1] == "COPY --from=code /opt/app /opt/app"
    assert not [layer for layer in layers[:-1] if "--from=code" in layer]


@pytest.mark.parametrize("target", ["cuda", "cpu"])
def test_torch_is_a_layer_before_the_other_packages_and_depends_on_its_own_pins_alone(target: str) -> None:
    torch, packages = re.findall(r"^RUN --mount=(.*?)(?=^[A-Z])", stage(target), re.MULTILINE | re.DOTALL)
    before, between = stage(target).split(torch)
    assert "-r /opt/lists/torch.txt" in torch
    assert "constraints.txt" not in before + torch
    assert f"-c /opt/lists/constraints.txt -r /opt/lists/{target}.txt" in between.split(packages)[0] + packages


@pytest.mark.parametrize("target", ["cuda", "cpu"])
def test_only_torch_is_asked_of_an_index_of_torchs_builds(target: str) -> None:
    asked = [line for line in re.split(r"&&|^RUN", stage(target), flags=re.MULTILINE) if "--index-url" in line]
    assert len(asked) == 1
    assert "--no-deps" in asked[0]
    assert re.findall(r"-r (\S+)", asked[0]) == ["/opt/lists/torch.txt"]


@pytest.mark.parametrize("target", TARGETS)
def test_no_image_keeps_pip_or_a_compiler_that_only_the_build_needs(target: str) -> None:
    installed = " ".join(re.findall(r"apt-get install (.*)", stage("base") + stage(target)))
    assert not {"g++", "python3-venv", "python3-pip"} & set(installed.split())
    assert "venv --without-pip /opt/venv" in stage("base")


@pytest.mark.parametrize("target", TARGETS)
def test_the_labels_are_those_of_the_image_specification(target: str) -> None:
    labels = dict(re.findall(r'org\.opencontainers\.image\.([\w.]+)="([^"]*)"', stage(target)))
    assert set(labels) == {"title", "description", "licenses", "version", "revision", "base.name"}
    assert (labels["version"], labels["revision"], labels["base.name"]) == ("${VERSION}", "${REVISION}", "${BASE}")


def test_the_sidecar_keeps_what_it_calls_of_the_kubernetes_client_and_little_else(tmp_path: Path) -> None:
    kept = re.findall(r"prune_kubernetes\.py (.+?) \\", stage("sidecar"))[0].split()
    removed = re.findall(r"uninstall --yes \\\n\s+(.+)", stage("sidecar"))[0].split()
    shutil.copytree(Path(kubernetes.__file__).parent, tmp_path / "kubernetes")
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    subprocess.run([sys.executable, ROOT / "scripts" / "prune_kubernetes.py", *kept], env=environment, check=True)
    assert sum(path.stat().st_size for path in (tmp_path / "kubernetes").rglob("*.py")) < 10e6
    # A module of the name of a removed package stands in its way.
    for name in removed:
        (tmp_path / f"{name.replace('-', '_')}.py").write_text("raise ImportError(__name__)\n")
    suite = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/unit/sidecar/test_kube.py"]
    done = subprocess.run(suite, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


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
