"""Generate the Python stubs of weir.v1 and weir.orca: for `make proto`, and for the build backend of the wheel."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import grpc_tools
from grpc_tools import protoc

PROTO_ROOT = Path(__file__).resolve().parent
OUT = PROTO_ROOT.parent / "service"
PACKAGES = {"v1": "The weir.v1 API", "orca": "ORCA load reports"}


def generate() -> None:
    """Write *_pb2.py, *_pb2.pyi and *_pb2_grpc.py below service/weir. Raises RuntimeError when protoc fails."""
    sources = sorted(str(p.relative_to(PROTO_ROOT)) for p in (PROTO_ROOT / "weir").glob("*/*.proto"))
    well_known = Path(grpc_tools.__file__).parent / "_proto"
    for name, what in PACKAGES.items():
        package = OUT / "weir" / name
        package.mkdir(parents=True, exist_ok=True)
        (package / "__init__.py").write_text(f'"""{what}: generated stubs."""\n')
    code = protoc.main(
        [
            "protoc",
            f"-I{PROTO_ROOT}",
            f"-I{well_known}",
            f"--python_out={OUT}",
            f"--pyi_out={OUT}",
            f"--grpc_python_out={OUT}",
            *sources,
        ]
    )
    if code != 0:
        raise RuntimeError(f"protoc failed with exit code {code} on {sources}")


def get_build_hook() -> type:
    """Hand hatchling the hook class; imported late, because `make proto` runs without hatchling."""
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface

    class StubsHook(BuildHookInterface):  # type: ignore[misc, type-arg]
        """Generates the stubs before files are collected."""

        def initialize(self, version: str, build_data: dict[str, Any]) -> None:
            """Called by hatchling before each build."""
            generate()

    return StubsHook


if __name__ == "__main__":
    generate()
    sys.stdout.write(f"stubs written to {OUT / 'weir'}\n")
