"""`weir serve`: the server process."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path

from weir import config
from weir.exit_codes import FAILED, WRONG_USAGE
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
    except (config.ConfigError, ModelError) as error:
        return _refuse(error, _print)
    notes = repair(os.environ)
    # Late: a wrong setting is said before anything large is imported.
    from weir.server.checks import check_server
    from weir.server.serve import serve
    from weir.telemetry.logging import configure_logging

    configure_logging(settings.telemetry)
    for note in notes:
        _log.warning("%s", note)
    try:
        if args.name is not None and not Path(args.name).exists():
            from weir.models.fetch import fetch

            check_server(settings.server)  # before what may take an hour, too
            fetch(args.name, progress=_log.info)
        return serve(settings)
    except (config.ConfigError, ModelError, OSError) as error:
        return _refuse(error, _log.error if settings.telemetry.log_format == "json" else _print)


def _refuse(error: Exception, say: Callable[[str], None]) -> int:
    """Say why nothing is served; the exit code."""
    for line in str(error).splitlines():
        say(line)
    if isinstance(error, ModelError):
        from weir.commands.fetch import exit_code

        return exit_code(error)
    return WRONG_USAGE if isinstance(error, config.ConfigError) else FAILED


def _print(line: str) -> None:
    print(f"weir serve: {line}", file=sys.stderr)


def _settings(args: argparse.Namespace) -> config.Settings:
    """The settings, with the folder that the model is in, or will be once it is fetched."""
    if args.name is None:
        return config.load(args)
    if getattr(args, "model.model") is not None:
        raise config.ConfigError(f"MODEL ({args.name}) and --model say the same: give one of them")
    from weir.models.fetch import folder_of

    setattr(args, "model.model", str(folder_of(args.name)))
    return config.load(args)
