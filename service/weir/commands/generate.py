"""`weir generate "prompt"`: a completion, streamed to stdout as it is made."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from weir.client import Client, Options
from weir.commands.flags import positive
from weir.commands.printer import Printer
from weir.commands.sampling import add_sampling_arguments, sampling_options
from weir.commands.stdin import all_text, argument_text
from weir.commands.target import add_target_arguments, connect, reporting_errors
from weir.exit_codes import OK


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `weir generate`."""
    parser.epilog = "The output continues the prompt: to have both as one text, join them with nothing between."
    parser.add_argument("prompt", help="the prompt; - reads it from stdin")
    parser.add_argument("--chat", action="store_true", help="the prompt is a user's turn, for the chat template")
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end instead of the text")
    parser.add_argument("--timeout", type=positive, metavar="SECONDS", help="give up after this long")
    parser.add_argument("-n", type=int, metavar="N", help="choices to generate, printed one after the other")
    parser.add_argument(
        "--logprobs", type=int, metavar="K", help="also print each token's log-probability and K alternatives"
    )
    add_sampling_arguments(parser)
    add_target_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Generate."""
    return reporting_errors("generate", lambda: _generate(args), args.target)


def _generate(args: argparse.Namespace) -> int:
    options = sampling_options(args)
    if args.n is not None:
        options["n"] = args.n
    if args.logprobs is not None:
        options["logprobs"] = args.logprobs
    prompt = all_text() if args.prompt == "-" else argument_text("the prompt", args.prompt)
    text = None if args.chat else prompt
    messages = [{"role": "user", "content": prompt}] if args.chat else None
    with connect(args) as client:
        if args.json:
            completion = client.complete(text, messages=messages, timeout_s=args.timeout, **options)
            print(json.dumps({"text": completion.text, **asdict(completion)}, ensure_ascii=False))
        else:
            _stream(client, text, messages, args.timeout, options)
    return OK


def _stream(
    client: Client, text: str | None, messages: list[dict[str, str]] | None, timeout_s: float | None, options: Options
) -> None:
    with (
        client.generate(text, messages=messages, timeout_s=timeout_s, **options) as stream,
        Printer(options.get("n", 1)) as printer,
    ):
        for delta in stream:
            printer.add(delta)
