"""The check of the pins, against a folder of wheels that stands for a package index."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from importlib.metadata import distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = """
[build-system]
requires = ["hatchling"]

[project]
name = "weir-llm"
version = "0"
dependencies = ["grpcio"]

[project.optional-dependencies]
server = ["torch>=2.11", "triton>=3.6"]
fetch = []
sidecar = ["kubernetes"]
dev = ["weir-llm[server,fetch,sidecar]", "hatchling"]
"""
LOCK = ("grpcio==1.0", "hatchling==1.0", "kubernetes==1.0", "nvidia-cublas==13.1", "torch==2.13.0", "triton==3.7.1")


def write_wheel(folder: Path, name: str, version: str, *requires: str) -> None:
    """An empty package."""
    stem = f"{name.replace('-', '_')}-{version}"
    metadata = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}", *(f"Requires-Dist: {r}" for r in requires)]
    with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{stem}.dist-info/METADATA", "\n".join(metadata) + "\n")
        wheel.writestr(f"{stem}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{stem}.dist-info/RECORD", "")


@pytest.fixture
def index(tmp_path: Path) -> Path:
    """What an ordinary index has: torch that needs one release of Triton, and CUDA's libraries."""
    folder = tmp_path / "index"
    folder.mkdir()
    write_wheel(folder, "torch", "2.13.0", "triton==3.7.1", "nvidia-cublas")
    for name, version in [("triton", "3.7.1"), ("triton", "3.9.0"), ("nvidia-cublas", "13.1"), ("grpcio", "1.0")]:
        write_wheel(folder, name, version)
    for name in ("hatchling", "kubernetes"):
        write_wheel(folder, name, "1.0")
    return folder


def check(index: Path, *pins: str, env: Mapping[str, str] | None = None) -> tuple[int, str]:
    """Exit status and output of the script for a project with these pins."""
    root = index.parent / "project"
    (root / "requirements").mkdir(parents=True)
    (root / "pyproject.toml").write_text(PROJECT)
    (root / "requirements" / "constraints.txt").write_text("# pins\n" + "\n".join(pins) + "\n")
    command = [sys.executable, ROOT / "scripts" / "check_lock.py", "--root", root, "--no-index", "--find-links", index]
    environment = os.environ | {"UV_CACHE_DIR": str(index.parent / "cache")} | (env or {})
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert not done.stderr
    return done.returncode, done.stdout


def test_no_two_packages_bring_the_same_file_so_that_the_order_of_installation_does_not_matter() -> None:
    owners: dict[str, set[str]] = {}
    for installed in distributions():
        for file in installed.files or []:
            if not (file.suffix == ".pyc" or ".dist-info" in str(file) or ".." in file.parts):
                owners.setdefault(str(file), set()).add(installed.metadata["Name"])
    assert {file: names for file, names in owners.items() if len(names) > 1} == {}
    assert len(owners) > 10_000


def test_pins_that_resolve_and_are_all_needed_pass(index: Path) -> None:
    assert check(index, *LOCK) == (0, "constraints.txt: 6 pins, 24 resolutions\n")


def test_a_triton_that_torch_of_an_ordinary_index_refuses_is_a_fault(index: Path) -> None:
    code, output = check(index, *LOCK[:-1], "triton==3.9.0")
    assert code == 1
    assert "triton==3.7.1" in output
    assert "triton==3.9.0" in output
    assert all(f"in development, Python {python}" in output for python in ("3.11", "3.12", "3.13"))


def test_a_local_build_of_torch_that_needs_no_triton_hides_nothing(index: Path, tmp_path: Path) -> None:
    local = tmp_path / "wheels"
    local.mkdir()
    write_wheel(local, "torch", "2.13.0+cpu")
    (tmp_path / "pip.conf").write_text(f"[global]\nfind-links = {local}\n")
    hiding = {"PIP_FIND_LINKS": str(local), "UV_FIND_LINKS": str(local), "PIP_CONFIG_FILE": str(tmp_path / "pip.conf")}
    assert check(index, *LOCK[:-1], "triton==3.9.0", env=hiding)[0] == 1


def test_a_package_without_a_pin_is_a_fault_that_gives_the_pin(index: Path) -> None:
    code, output = check(index, *(pin for pin in LOCK if not pin.startswith("nvidia")))
    assert code == 1
    assert output.startswith("not pinned: nvidia-cublas==13.1\n  in development, Python 3.11\n")
    assert "in cuda image, Python 3.13" in output
    assert "in client" not in output


def test_a_pin_that_nothing_needs_is_a_fault(index: Path) -> None:
    assert check(index, *LOCK, "left-over==1.0") == (1, "pinned and not needed: left-over==1.0\n")
