"""`weir serve`: the server process."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from pathlib import Path

from weir import config
from weir.exit_codes import WRONG_USAGE
from weir.models.errors import ModelError
from weir.telemetry.otel_environment import repair

_log = logging.getLogger(__name__)

_SECTIONS = ("model", "engine", "server", "telemetry")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The model, and a flag for every setting."""
    parser.epilog = "Every flag is also an environment variable (WEIR_DRAIN_TIMEOUT) and a key of the --config file."
    parser.add_argument(
        "name",
        nargs="?",
        metavar="MODEL",
        help="a folder, as --model; or what weir fetch takes: fetched at its first use",
    )
    config.add_flags(parser, *_SECTIONS)


def run(args: argparse.Namespace) -> int:
    """Serve until SIGTERM."""
    try:
        settings = _settings(args)
        notes = repair(os.environ)
        # Late: a wrong setting is said before anything large is imported.
        from weir.server.checks import check_server
        from weir.server.serve import serve
        from weir.telemetry.logging import configure_logging

        configure_logging(settings.telemetry)
        for note in notes:
            _log.warning("%s", note)
        if args.name is not None and not Path(args.name).exists():
            from weir.models.fetch import fetch

            check_server(settings.server)  # before what may take an hour, too
            fetch(args.name, progress=_log.info)
        return serve(settings)
    except config.ConfigError as error:
        for line in str(error).splitlines():
            print(f"weir serve: {line}", file=sys.stderr)
        return WRONG_USAGE
    except ModelError as error:
        from weir.commands.fetch import exit_code

        print(f"weir serve: {error}", file=sys.stderr)
        return exit_code(error)


def _settings(args: argparse.Namespace) -> config.Settings:
    """The settings, with the folder that the model is in, or will be once it is fetched."""
    if args.name is None:
        return config.load(args)
    if getattr(args, "model.model") is not None:
        raise config.ConfigError(f"MODEL ({args.name}) and --model say the same: give one of them")
    from weir.models.fetch import folder_of

    setattr(args, "model.model", str(folder_of(args.name)))
    return config.load(args)
