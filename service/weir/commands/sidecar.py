"""`weir sidecar`: what Kubernetes cannot know by itself, told to it from inside the pod."""

from __future__ import annotations

import argparse
import logging
import sys

from weir.config import ConfigError
from weir.exit_codes import FAILED, WRONG_USAGE
from weir.sidecar.app import Sidecar
from weir.sidecar.connection import ClusterConnection
from weir.sidecar.engine_link import EngineLink
from weir.sidecar.http_port import HttpPort
from weir.sidecar.metrics import SidecarMetrics
from weir.sidecar.settings import PodIdentity, add_flags, load


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """A flag for every setting."""
    parser.epilog = "Every flag is also an environment variable, as in WEIR_SIDECAR_LOG_LEVEL."
    add_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Run until SIGTERM."""
    try:
        settings, identity = load(args), PodIdentity.from_environment()
    except ConfigError as error:
        for line in str(error).splitlines():
            print(f"weir sidecar: {line}", file=sys.stderr)
        return WRONG_USAGE
    logging.basicConfig(
        level=settings.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s", force=True
    )
    # urllib3 would log a warning of its own for each connection that fails.
    logging.getLogger("urllib3").setLevel(logging.ERROR)
    metrics = SidecarMetrics()
    link = EngineLink(settings.admin_address)
    sidecar = Sidecar(settings, identity, link, ClusterConnection(), metrics)
    try:
        port = HttpPort(settings.host, settings.port, metrics.registry, sidecar.is_healthy)
    except OSError as error:
        print(f"weir sidecar: cannot listen on {settings.host} port {settings.port}: {error}", file=sys.stderr)
        return FAILED
    port.start()
    sidecar.handle_signals()
    code = sidecar.run()
    port.stop()
    return code
