"""The sampling flags of `generate` and `chat`. A flag that is not given leaves the choice to the server."""

from __future__ import annotations

import argparse

from weir.client import Options
from weir.commands.flags import token_bias


def add_sampling_arguments(parser: argparse.ArgumentParser) -> None:
    """Add a flag for each sampling parameter that makes sense by hand."""
    group = parser.add_argument_group("sampling")
    group.add_argument("--max-tokens", type=int, metavar="N", help="most tokens to generate")
    group.add_argument("--min-tokens", type=int, metavar="N", help="fewest tokens to generate")
    group.add_argument("--temperature", type=float, metavar="T", help="0 is greedy")
    group.add_argument("--top-k", type=int, metavar="K", help="keep the K most probable tokens")
    group.add_argument("--top-p", type=float, metavar="P", help="keep the most probable tokens that sum to P")
    group.add_argument("--min-p", type=float, metavar="P", help="keep tokens at least P times as probable as the best")
    group.add_argument("--repetition-penalty", type=float, metavar="X", help="above 1 discourages repetition")
    group.add_argument("--presence-penalty", type=float, metavar="X", help="for tokens that occurred")
    group.add_argument("--frequency-penalty", type=float, metavar="X", help="for each time a token occurred")
    group.add_argument(
        "--logit-bias",
        action="append",
        type=token_bias,
        metavar="ID=BIAS",
        help="add BIAS to the logit of this token; may be repeated",
    )
    group.add_argument("--seed", type=int, metavar="N", help="makes sampling reproducible")
    group.add_argument("--stop", action="append", metavar="S", help="end at this text; may be repeated")
    group.add_argument("--ignore-eos", action="store_true", help="go on at end-of-sequence tokens")
    group.add_argument("--priority", type=int, metavar="0..9", help="0 is the most urgent")
    group.add_argument("--model", metavar="NAME", help="refuse to be answered by another model")


def sampling_options(args: argparse.Namespace) -> Options:
    """The options that were given."""
    names = (
        "max_tokens", "min_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty",
        "presence_penalty", "frequency_penalty", "seed", "stop", "priority", "model",
    )  # fmt: skip
    options: Options = {}
    options.update({name: value for name in names if (value := getattr(args, name)) is not None})  # type: ignore[typeddict-item]
    if args.logit_bias:
        options["logit_bias"] = dict(args.logit_bias)
    if args.ignore_eos:
        options["ignore_eos"] = True
    return options
