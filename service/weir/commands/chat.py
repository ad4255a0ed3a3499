"""`weir chat`: a conversation with the served model; Ctrl-C stops an answer, Ctrl-D ends."""

from __future__ import annotations

import argparse
import sys

from weir.client import Client, Options, WeirError
from weir.commands.printer import Printer
from weir.commands.sampling import add_sampling_arguments, sampling_options
from weir.commands.stdin import argument_text, next_line
from weir.commands.target import add_target_arguments, connect, exit_code, explain, reporting_errors
from weir.exit_codes import OK, WRONG_USAGE


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `weir chat`."""
    parser.add_argument("--system", metavar="TEXT", help="instructions that come before the conversation")
    add_sampling_arguments(parser)
    add_target_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Converse until the input ends."""
    return reporting_errors("chat", lambda: _converse(args), args.target)


def _converse(args: argparse.Namespace) -> int:
    messages = [{"role": "system", "content": argument_text("--system", args.system)}] if args.system else []
    options = sampling_options(args)
    with connect(args) as client:
        model = client.model()
        if sys.stdin.isatty():
            print(f"{model.name}, {model.max_model_len} tokens. Ctrl-C stops an answer, Ctrl-D ends.", file=sys.stderr)
        while (said := next_line("> ")) is not None:
            if not said.strip():
                continue
            messages.append({"role": "user", "content": said})
            try:
                messages.append({"role": "assistant", "content": _answer(client, messages, options)})
            except WeirError as error:
                # A conversation that has outgrown the model cannot go on; what is only busy a person can ask again.
                if exit_code(error) == WRONG_USAGE or not sys.stdin.isatty():
                    raise
                print(f"weir chat: {explain(error, args.target)}", file=sys.stderr)
                messages.pop()
    return OK


def _answer(client: Client, messages: list[dict[str, str]], options: Options) -> str:
    """Stream the answer; what there is of it when the user stops it."""
    answer = ""
    with client.generate(messages=messages, **options) as stream, Printer(1) as printer:
        try:
            for delta in stream:
                answer += delta.text
                printer.add(delta)
        except KeyboardInterrupt:
            printer.mark(" [stopped]")
    return answer
