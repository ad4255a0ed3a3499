"""Check that the pins of requirements/constraints.txt install wherever there is an ordinary package index.

    check_lock.py [UV_FLAG...]

Every list of packages that something installs is resolved under the pins, for each Python, from metadata: no package is
downloaded. Pip's configuration is not read, so a build of torch that lies on this machine hides nothing. The CPU builds
of torch need less than those of an ordinary index, so what holds for these holds for them.

Faults: a list that has no solution; a package that is needed and not pinned; a pin that nothing needs.
The index is that of UV_DEFAULT_INDEX or PIP_INDEX_URL where one is set.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from list_requirements import requirements
from uv import find_uv_bin

PYTHONS = ("3.11", "3.12", "3.13")
# What torch is built for.
PLATFORM = "x86_64-manylinux_2_28"
UV = find_uv_bin()
EXTRAS = {"client": (), "server": ("server", "fetch"), "sidecar": ("sidecar",)}
KEPT_SETTINGS = {"UV_CACHE_DIR", "UV_DEFAULT_INDEX", "UV_HTTP_TIMEOUT"}


@dataclass(frozen=True, slots=True)
class Case:
    """Something that is installed somewhere: extras of the project, or else lines as in a requirements file."""

    name: str
    python: str
    extras: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Resolution:
    """packages: version by name; error: the resolver's words, `` where there is a solution."""

    case: Case
    packages: dict[str, str]
    error: str


def everything(python: str) -> Case:
    """What development installs: all that the other cases need too."""
    return Case("development", python, extras=("dev",))


def parts(root: Path, python: str) -> Iterator[Case]:
    """What a user, a build or the Dockerfile asks an index for."""
    project = tomllib.loads((root / "pyproject.toml").read_text())
    lists = {
        "build": project["build-system"]["requires"],
        "cuda image": requirements(project["project"], ["server", "fetch"], []),
        "cpu image": requirements(project["project"], ["server", "fetch"], ["triton"]),
        "sidecar image": requirements(project["project"], ["sidecar"], []),
    }
    for name, extras in EXTRAS.items():
        yield Case(name, python, extras=extras)
    for name, lines in lists.items():
        yield Case(name, python, lines=tuple(lines))


def resolve(case: Case, root: Path, lock: Path, flags: list[str]) -> Resolution:
    """Ask uv, which reads metadata by byte ranges where the index does not serve it apart."""
    command = [UV, "pip", "compile", "--quiet", "--no-config", "--system-certs", "--color=never"]
    command += [
        f"--python={sys.executable}",
        "--no-header",
        "--no-annotate",
        "--only-binary=:all:",
        f"--constraints={lock}",
    ]
    command += [f"--python-version={case.python}", f"--python-platform={PLATFORM}", *flags]
    command += [f"--extra={extra}" for extra in case.extras] + ["-" if case.lines else "pyproject.toml"]
    done = subprocess.run(
        command, cwd=root, env=_environment(), input="\n".join(case.lines), capture_output=True, text=True, check=False
    )
    return Resolution(case, pins(done.stdout), done.stderr.strip() if done.returncode else "")


def resolve_all(python: str, root: Path, lock: Path, flags: list[str]) -> list[Resolution]:
    """Everything first, which fills uv's cache; its parts from the cache where they can. A failure ends it."""
    found = [resolve(everything(python), root, lock, flags)]
    for case in parts(root, python):
        if found[0].error:
            break
        cached = resolve(case, root, lock, [*flags, "--offline"])
        found.append(resolve(case, root, lock, flags) if cached.error else cached)
    return found


def pins(text: str) -> dict[str, str]:
    """Version by normalised name, of the `name==version` lines. Raises ValueError where a line is none."""
    found = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, separator, version = line.partition("==")
            if not separator:
                raise ValueError(f"not a pin: {line!r}")
            found[re.sub(r"[-_.]+", "-", name).lower()] = version
    return found


def faults(resolutions: Sequence[Resolution], locked: dict[str, str]) -> list[str]:
    """In words, each once."""
    where: dict[str, list[str]] = {}
    needed: set[str] = set()
    for resolution in resolutions:
        found = [resolution.error] if resolution.error else []
        found += [
            f"not pinned: {name}=={version}" for name, version in resolution.packages.items() if name not in locked
        ]
        for fault in found:
            where.setdefault(fault, []).append(f"{resolution.case.name}, Python {resolution.case.python}")
        needed |= resolution.packages.keys()
    if not any(resolution.error for resolution in resolutions):
        where |= {f"pinned and not needed: {name}=={locked[name]}": [] for name in sorted(locked.keys() - needed)}
    return ["\n  in ".join([fault, *places]) for fault, places in where.items()]


def _environment() -> dict[str, str]:
    environment = {key: value for key, value in os.environ.items() if key in KEPT_SETTINGS or not key.startswith("UV_")}
    if index := os.environ.get("PIP_INDEX_URL"):
        environment.setdefault("UV_DEFAULT_INDEX", index)
    return environment


def main() -> int:
    """Print what was found. Returns 1 where there is a fault."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent)
    parser.add_argument("--lock", type=Path, help="default: requirements/constraints.txt of the project")
    args, flags = parser.parse_known_args()
    lock = (args.lock or args.root / "requirements" / "constraints.txt").resolve()
    with ThreadPoolExecutor(len(PYTHONS)) as pool:
        by_python = pool.map(lambda python: resolve_all(python, args.root, lock, flags), PYTHONS)
        resolutions = [resolution for found in by_python for resolution in found]
    locked = pins(lock.read_text())
    found = faults(resolutions, locked)
    sys.stdout.writelines(f"{fault}\n" for fault in found)
    if not found:
        sys.stdout.write(f"{lock.name}: {len(locked)} pins, {len(resolutions)} resolutions\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
