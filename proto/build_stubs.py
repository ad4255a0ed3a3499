"""Generate the Python stubs of weir.v1; run by `make proto`, and by the build backend when a wheel is made."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import grpc_tools
from grpc_tools import protoc

PROTO_ROOT = Path(__file__).resolve().parent
OUT = PROTO_ROOT.parent / "service"
PACKAGE = OUT / "weir" / "v1"


def generate() -> None:
    """Write service/weir/v1/*_pb2.py, *_pb2.pyi and *_pb2_grpc.py. Raises RuntimeError when protoc fails."""
    sources = sorted(str(p.relative_to(PROTO_ROOT)) for p in (PROTO_ROOT / "weir" / "v1").glob("*.proto"))
    well_known = Path(grpc_tools.__file__).parent / "_proto"
    PACKAGE.mkdir(parents=True, exist_ok=True)
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
    (PACKAGE / "__init__.py").write_text('"""Generated stubs of the weir.v1 API."""\n')


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
    sys.stdout.write(f"stubs written to {PACKAGE}\n")
