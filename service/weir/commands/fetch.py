"""`weir fetch NAME`: a model folder, downloaded or found."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from weir.exit_codes import FAILED, OK, WRONG_USAGE
from weir.models.errors import FetchError, ModelError, UnknownModelError
from weir.models.fetch import fetch


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `weir fetch`."""
    parser.add_argument("name", help="smollm2-135m-instruct, a hub id as ORG/NAME, or a local folder to check")
    parser.add_argument("--dest", type=Path, default=Path("models"), metavar="DIR", help="(default: %(default)s)")
    parser.add_argument("--revision", metavar="REV", help="branch, tag or commit of the hub repository (default: main)")


def run(args: argparse.Namespace) -> int:
    """Fetch, and print the folder."""
    try:
        print(fetch(args.name, args.dest, revision=args.revision))
    except ModelError as error:
        print(f"weir fetch: {error}", file=sys.stderr)
        return exit_code(error)
    return OK


def exit_code(error: ModelError) -> int:
    """FAILED for a download that may succeed another time, WRONG_USAGE for what is no model."""
    may_succeed_later = isinstance(error, FetchError) and not isinstance(error, UnknownModelError)
    return FAILED if may_succeed_later else WRONG_USAGE
