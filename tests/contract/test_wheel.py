"""The wheel, built from the files of a release and installed from a folder into an environment without extras."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from weir import __version__
from weir.cli import COMMANDS
from weir.exit_codes import WRONG_USAGE

ROOT = Path(__file__).parents[2]
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "proto", "service", "kernels")
NAME = "weir-llm"
# No index and no local folder but the one that is named: the name must never be looked up anywhere else.
OFFLINE = os.environ | {"PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": "", "PIP_NO_INDEX": "1"}


def run(*command: str | Path, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Elsewhere than in the repository, whose folders would be found first."""
    done = subprocess.run(command, cwd="/", env=OFFLINE, capture_output=True, text=True, check=False)
    assert done.returncode == 0 or not check, done.stdout + done.stderr
    return done


def needed(name: str) -> Iterator[str]:
    """A distribution and what it requires without extras, as they are installed for the tests."""
    yield name
    for line in distribution(name).requires or []:
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield from needed(requirement.name)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the files that a release has; stubs that lie in the tree are left out, for the build makes them."""
    source = tmp_path_factory.mktemp("source")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        else:
            shutil.copy2(ROOT / name, source)
    for stubs in ("v1", "orca"):
        shutil.rmtree(source / "service" / "weir" / stubs)
    folder = tmp_path_factory.mktemp("dist")
    pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation")
    run(*pip, "--wheel-dir", folder, source)
    (built,) = folder.iterdir()
    return built


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its `bin`, after pip has installed the wheel beside its base dependencies and found none missing."""
    folder = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    (site_packages,) = folder.glob("lib/python3*/site-packages")
    for name in set(needed(NAME)) - {NAME}:
        for file in distribution(name).files or []:
            if ".." not in file.parts:
                (site_packages / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(Path(str(file.locate())), site_packages / file)
    pip = (sys.executable, "-m", "pip", "--python", folder / "bin" / "python", "install", "--quiet")
    run(*pip, "--find-links", wheel.parent, NAME)
    return folder / "bin"


def test_the_wheel_has_code_stubs_kernel_sources_and_tables_and_no_tests(wheel: Path) -> None:
    assert wheel.name == f"weir_llm-{__version__}-py3-none-any.whl"
    names = zipfile.ZipFile(wheel).namelist()
    assert {"weir/v1/inference_pb2_grpc.py", "weir/orca/service_pb2.py", "weir/cli.py"} <= set(names)
    assert "weir_kernels/tuning/sm_90.json" in names
    assert any(name.startswith("weir_kernels/cpu/csrc/") and name.endswith(".cpp") for name in names)
    assert {name.split("/")[0] for name in names} == {"weir", "weir_kernels", f"weir_llm-{__version__}.dist-info"}


def test_the_command_is_called_weir_and_tells_the_version_of_the_distribution(environment: Path) -> None:
    assert run(environment / "weir", "--version").stdout == f"weir {__version__}\n"
    told = run(environment / "python", "-c", f"from importlib.metadata import version; print(version('{NAME}'))")
    assert told.stdout == f"{__version__}\n"


def test_the_base_install_is_a_client_that_imports_as_weir(environment: Path) -> None:
    code = (
        "import weir.client, importlib.util as u; print([m for m in ('torch', 'pydantic', 'yaml') if u.find_spec(m)])"
    )
    assert run(environment / "python", "-c", code).stdout == "[]\n"
    done = run(environment / "weir", "generate", "--target", "127.0.0.1:1", "hello", check=False)
    assert done.returncode != 0
    assert "127.0.0.1:1" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", [name for name, command in COMMANDS.items() if command.extra])
def test_a_command_whose_extra_is_missing_names_the_distribution_to_install(environment: Path, name: str) -> None:
    done = run(environment / "weir", name, check=False)
    assert done.returncode == WRONG_USAGE
    assert re.fullmatch(
        rf"weir {name}: \S+ is missing: pip install 'weir-llm\[{COMMANDS[name].extra}\]'\n", done.stderr
    )


def test_nothing_tells_anybody_to_install_the_package_of_another_that_is_called_weir() -> None:
    texts = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "helm").rglob("*.*"), ROOT / "Dockerfile"]
    texts += [*(ROOT / "service").rglob("*.py"), *(ROOT / "scripts").iterdir(), ROOT / "pyproject.toml"]
    stranger = re.compile(r"install (?:-\S+ )*['\"]?weir(?![\w-])|['\"]weir\[")
    told = {
        f"{path.relative_to(ROOT)}: {found[0]}"
        for path in texts
        if path.is_file() and path.suffix != ".tgz"
        for found in stranger.finditer(path.read_text(errors="replace"))
    }
    assert not told
