"""Print what the named extras of pyproject.toml (and the base install) depend on, one requirement a line.

    list_requirements.py EXTRA... [--without NAME]...

Images install this list before the code, so that a change of code does not install it again.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from pathlib import Path


def requirements(project: dict[str, object], extras: list[str], without: list[str]) -> list[str]:
    """Requirements of the base install and `extras`, sorted, less the packages in `without`. Raises KeyError."""
    groups = project["optional-dependencies"]
    assert isinstance(groups, dict)
    assert isinstance(project["dependencies"], list)
    found = {*project["dependencies"], *(line for extra in extras for line in groups[extra])}
    return sorted(line for line in found if re.split(r"[^A-Za-z0-9._-]", line)[0] not in without)


def main() -> int:
    """Print the list."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("extras", nargs="*")
    parser.add_argument("--without", action="append", default=[], metavar="NAME")
    parser.add_argument("--file", type=Path, default=Path("pyproject.toml"))
    args = parser.parse_args()
    project = tomllib.loads(args.file.read_text())["project"]
    sys.stdout.writelines(f"{line}\n" for line in requirements(project, args.extras, args.without))
    return 0


if __name__ == "__main__":
    sys.exit(main())
