"""`weir COMMAND`: finds the command and runs it. Only that command's module is imported: a small install works."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType

from weir import __version__
from weir.exit_codes import FAILED, INTERRUPTED, WRONG_USAGE


@dataclass(frozen=True, slots=True)
class Command:
    """A module with `add_arguments(parser)` and `run(args) -> int`, and the extra of the package that it needs."""

    module: str
    help: str
    extra: str | None = None


COMMANDS = {
    "serve": Command("weir.commands.serve", "serve a model over gRPC", "server"),
    "generate": Command("weir.commands.generate", "stream a completion from a server"),
    "chat": Command("weir.commands.chat", "talk to a server's model, turn by turn"),
    "fetch": Command("weir.commands.fetch", "download a model", "fetch"),
    "size": Command("weir.commands.size", "say what a model needs and what a memory holds", "server"),
    "bench": Command("weir.commands.bench", "measure throughput and latency", "server"),
    "top": Command("weir.commands.top", "watch a server's KV budget and queue"),
    "trace": Command("weir.commands.trace", "draw a trace file as a timeline"),
    "sidecar": Command("weir.commands.sidecar", "run beside a server in its pod", "sidecar"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line. Returns the exit code, as `weir.exit_codes` explains them."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    chosen = next((word for word in arguments if not word.startswith("-")), None)
    try:
        parser = _parser(chosen)
        args = parser.parse_args(arguments)
        run = importlib.import_module(COMMANDS[args.command].module).run
        return int(run(args))
    except MissingExtraError as error:
        print(f"weir {chosen}: {error}", file=sys.stderr)
        return WRONG_USAGE
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read the output has seen enough; keep the interpreter from complaining at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED


class MissingExtraError(Exception):
    """A command needs packages that this install leaves out."""


def _parser(chosen: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="weir", description="LLM inference over gRPC, admitted by KV-cache budget.", allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"weir {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, command in COMMANDS.items():
        subparser = commands.add_parser(name, help=command.help, description=command.help.capitalize() + ".")
        if name == chosen:
            _load(command).add_arguments(subparser)
    return parser


def _load(command: Command) -> ModuleType:
    try:
        return importlib.import_module(command.module)
    except ModuleNotFoundError as error:
        if command.extra is None or (error.name or "").startswith("weir"):
            raise
        raise MissingExtraError(f"{error.name} is missing: pip install 'weir-llm[{command.extra}]'") from None


if __name__ == "__main__":
    sys.exit(main())
