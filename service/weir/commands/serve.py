"""`weir serve`: the server process."""

from __future__ import annotations

import argparse
import sys

from weir import config
from weir.exit_codes import WRONG_USAGE
from weir.server.serve import serve
from weir.telemetry.logging import configure_logging

_SECTIONS = ("model", "engine", "server", "telemetry")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """A flag for every setting."""
    parser.epilog = "Every flag is also an environment variable (WEIR_DRAIN_TIMEOUT) and a key of the --config file."
    config.add_flags(parser, *_SECTIONS)


def run(args: argparse.Namespace) -> int:
    """Serve until SIGTERM."""
    try:
        settings = config.load(args)
        configure_logging(settings.telemetry)
        return serve(settings)
    except config.ConfigError as error:
        for line in str(error).splitlines():
            print(f"weir serve: {line}", file=sys.stderr)
        return WRONG_USAGE
