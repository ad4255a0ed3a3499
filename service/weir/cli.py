"""`weir COMMAND`: finds the command and runs it. Only that command's module is imported: a small install works."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import importlib
import os
import re
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from weir import __version__
from weir.exit_codes import FAILED, INTERRUPTED, OK, OUTPUT_CLOSED, TERMINATED, WRONG_USAGE

if TYPE_CHECKING:
    from _typeshed import SupportsWrite


@dataclass(frozen=True, slots=True)
class Command:
    """A module with `add_arguments(parser)` and `run(args) -> int`, and the extra of the package that it needs.

    drains: SIGTERM asks it to finish what it does and end with 0; another command just ends.
    """

    module: str
    help: str
    extra: str | None = None
    drains: bool = False


COMMANDS = {
    "serve": Command("weir.commands.serve", "serve a model over gRPC", "server", drains=True),
    "generate": Command("weir.commands.generate", "stream a completion from a server"),
    "chat": Command("weir.commands.chat", "talk to a server's model, turn by turn"),
    "fetch": Command("weir.commands.fetch", "download a model", "fetch"),
    "size": Command("weir.commands.size", "say what a model needs and what a memory holds", "server"),
    "bench": Command("weir.commands.bench", "measure throughput and latency"),
    "top": Command("weir.commands.top", "watch a server's KV budget and queue"),
    "trace": Command("weir.commands.trace", "draw a trace file as a timeline"),
    "sidecar": Command("weir.commands.sidecar", "run beside a server in its pod", "sidecar", drains=True),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line. Returns the exit code, as `weir.exit_codes` explains them."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    chosen = next((word for word in arguments if not word.startswith("-")), None)
    if argv is None:
        _obey_sigterm(chosen)
    try:
        try:
            return _run(chosen, arguments)
        finally:
            sys.stdout.flush()
    except MissingExtraError as error:
        print(f"weir {chosen}: {error}", file=sys.stderr)
        return WRONG_USAGE
    except KeyboardInterrupt:
        return INTERRUPTED
    except OSError as error:
        # Keep the interpreter from complaining at exit about what it cannot write.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return OUTPUT_CLOSED
        print(f"weir {chosen}: {error}", file=sys.stderr)
        return FAILED


def _run(chosen: str | None, arguments: Sequence[str]) -> int:
    with _naming_missing_packages(COMMANDS.get(chosen or "")):
        parser, command_parser = _parsers(chosen)
        args, unknown = parser.parse_known_args(arguments)
        if unknown:
            command_parser.error(f"no such argument: {unknown[0]}{_nearest_flag(unknown[0], command_parser)}")
        return int(importlib.import_module(COMMANDS[args.command].module).run(args))


def _obey_sigterm(chosen: str | None) -> None:
    """End at once on SIGTERM, until the command has a handler of its own: loading its packages takes a second.

    The first process of a container that has no handler never gets the signal at all.
    """
    command = COMMANDS.get(chosen or "")
    drains = command is not None and command.drains
    for number in (signal.SIGTERM, signal.SIGINT) if drains else (signal.SIGTERM,):
        signal.signal(number, lambda *_: os._exit(OK if drains else TERMINATED))


class MissingExtraError(Exception):
    """A command needs packages that this install leaves out."""


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one sentence: the usage of a command with sixty flags would hide it."""

    def error(self, message: str) -> NoReturn:
        """End with the exit code for wrong usage."""
        self.exit(WRONG_USAGE, f"{self.prog}: {message}\n")

    def _print_message(self, message: str, file: SupportsWrite[str] | None = None) -> None:
        # The base class swallows what a full disk or a closed pipe says.
        (file or sys.stderr).write(message)


def _nearest_flag(word: str, parser: argparse.ArgumentParser) -> str:
    flags = re.findall(r"--[\w-]+", parser.format_usage())
    nearest = difflib.get_close_matches(word.partition("=")[0], flags, n=1)
    return f"; did you mean {nearest[0]}?" if nearest else ""


def _parsers(chosen: str | None) -> tuple[argparse.ArgumentParser, argparse.ArgumentParser]:
    """The whole command line's, and the chosen command's."""
    parser = _Parser(
        prog="weir", description="LLM inference over gRPC, admitted by KV-cache budget.", allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"weir {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    of_command: argparse.ArgumentParser = parser
    for name, command in COMMANDS.items():
        subparser = commands.add_parser(name, help=command.help, description=command.help.capitalize() + ".")
        if name == chosen:
            of_command = subparser
            importlib.import_module(command.module).add_arguments(subparser)
    return parser, of_command


@contextlib.contextmanager
def _naming_missing_packages(command: Command | None) -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        if command is None or command.extra is None or (error.name or "").startswith("weir"):
            raise
        raise MissingExtraError(f"{error.name} is missing: pip install 'weir-llm[{command.extra}]'") from None


if __name__ == "__main__":
    sys.exit(main())
