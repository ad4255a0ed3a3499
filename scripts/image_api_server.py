"""The Kubernetes API's side of test_image.sh: prints a pod's environment, and ends when its sidecar has written to it.

Exit status 0, or 1 when nothing was written in time. Run it from the root of the repository.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from tests.unit.sidecar.api_server import IDENTITY, running

LIMIT_S = 120.0


def main() -> int:
    """Serve until a patch has arrived."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="where the token and the CA are put")
    args = parser.parse_args()
    with running(args.folder) as server:
        pod = {"POD_NAME": IDENTITY.name, "POD_NAMESPACE": IDENTITY.namespace, "POD_UID": IDENTITY.uid}
        sys.stdout.writelines(f"{name}={value}\n" for name, value in (pod | server.env).items())
        sys.stdout.flush()
        ends_at = time.monotonic() + LIMIT_S
        while not (server.annotations or server.pod["status"]["conditions"]):
            if time.monotonic() > ends_at:
                return 1
            time.sleep(0.1)
        written = [*server.annotations, *(condition["type"] for condition in server.pod["status"]["conditions"])]
        sys.stdout.write(f"the sidecar wrote {', '.join(written)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
