"""Delete what the named clients do not need from the installed kubernetes package, for an image.

    prune_kubernetes.py CLIENT...     as in CoreV1Api

The package imports a client, and the types in its signatures, when the client is first named; what is not imported once
all are named can go. The same again for asyncio goes whole. Run it with the Python of the environment.
"""

from __future__ import annotations

import shutil
import sys
from importlib.util import cache_from_source
from pathlib import Path

import kubernetes.client

# A module for each API group, and one for each type.
GENERATED = ("client/api", "client/models")


def prune(names: list[str]) -> None:
    """Raises AttributeError when there is no such client."""
    for name in names:
        getattr(kubernetes.client, name)
    imported = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    package = Path(kubernetes.__file__).parent
    for source in [path for part in GENERATED for path in (package / part).glob("*.py")]:
        if str(source) not in imported:
            source.unlink()
            Path(cache_from_source(str(source))).unlink(missing_ok=True)
    shutil.rmtree(package / "aio")


if __name__ == "__main__":
    prune(sys.argv[1:])
