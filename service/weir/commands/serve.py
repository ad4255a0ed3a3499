"""`weir serve`: the server process."""

from __future__ import annotations

import argparse
import logging
import os
import sys

from weir import config
from weir.exit_codes import WRONG_USAGE
from weir.telemetry.otel_environment import repair

_log = logging.getLogger(__name__)

_SECTIONS = ("model", "engine", "server", "telemetry")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """A flag for every setting."""
    parser.epilog = "Every flag is also an environment variable (WEIR_DRAIN_TIMEOUT) and a key of the --config file."
    config.add_flags(parser, *_SECTIONS)


def run(args: argparse.Namespace) -> int:
    """Serve until SIGTERM."""
    try:
        settings = config.load(args)
        notes = repair(os.environ)
        from weir.server.serve import serve  # late: a wrong setting is said before anything large is imported
        from weir.telemetry.logging import configure_logging

        configure_logging(settings.telemetry)
        for note in notes:
            _log.warning("%s", note)
        return serve(settings)
    except config.ConfigError as error:
        for line in str(error).splitlines():
            print(f"weir serve: {line}", file=sys.stderr)
        return WRONG_USAGE
