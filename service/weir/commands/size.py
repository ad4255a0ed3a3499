"""`weir size MODEL`: what a model needs, what a memory holds of it, and what would make it fit."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import asdict

from weir.config import ConfigError, EngineSettings, format_size, parse_memory
from weir.engine.size import PoolSize, SizeReport, WhatFits, size_report
from weir.exit_codes import FAILED, OK, WRONG_USAGE
from weir.models.errors import ModelError

_SERVE_SHARE = float(EngineSettings.model_fields["kv_memory_fraction"].default)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `weir size`; those that serve has too mean the same."""
    parser.add_argument("model", help="a model folder; only its config is read")
    parser.add_argument(
        "--memory", type=_memory, default="24GiB", metavar="SIZE", help="for weights and KV (default: %(default)s)"
    )
    parser.add_argument(
        "--kv-memory-fraction",
        type=_share,
        default=_SERVE_SHARE,
        metavar="SHARE",
        help="of what the weights leave, for the KV pool (default: %(default)s, as serve takes)",
    )
    parser.add_argument("--max-model-len", type=_count, metavar="TOKENS", help="(default: the model's own limit)")
    parser.add_argument("--block-size", type=_block, default=16, metavar="TOKENS", help="(default: %(default)s)")
    parser.add_argument(
        "--dtype",
        default="auto",
        choices=("auto", "float32", "bfloat16", "float16"),
        help="number type of weights and KV cache (default: the config's)",
    )
    parser.add_argument(
        "--kv-cache-dtype", default="auto", choices=("auto", "fp8_e4m3"), help="another type of the KV cache"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object, sizes in bytes")


def run(args: argparse.Namespace) -> int:
    """Print the arithmetic; what does not fit, and what would, is said on stderr."""
    try:
        report = size_report(
            args.model,
            args.memory,
            args.block_size,
            args.dtype,
            args.kv_cache_dtype,
            args.kv_memory_fraction,
            args.max_model_len,
        )
    except (ModelError, ConfigError) as error:
        print(f"weir size: {error}", file=sys.stderr)
        return WRONG_USAGE
    print(json.dumps({**asdict(report), "fits": report.fits}, indent=2) if args.json else _table(report))
    if report.what_fits is None:
        return OK
    print(f"weir size: {_misfit(report)}; {_advice(report.what_fits)}", file=sys.stderr)
    return FAILED


def _table(report: SizeReport) -> str:
    facts = [
        ("model", report.model),
        ("architecture", report.architecture),
        ("dtype", report.dtype),
        ("parameters", f"{report.parameters:,}"),
        ("weights", format_size(report.weights_bytes)),
        ("KV cache a token", format_size(report.kv_bytes_per_token)),
        ("KV cache a token and layer", format_size(report.kv_bytes_per_token_layer)),
        ("memory", format_size(report.memory_bytes)),
        ("left beside the weights", format_size(report.left_bytes)),
    ]
    of_pools: list[tuple[str, Callable[[PoolSize], str]]] = [
        ("share for the KV pool", _percent),
        ("KV pool", lambda pool: format_size(pool.bytes)),
        (f"KV blocks of {report.block_size} tokens", lambda pool: f"{pool.blocks:,}"),
        ("KV tokens", lambda pool: f"{pool.tokens:,}"),
        (f"requests of {report.max_model_len:,} tokens", lambda pool: f"{pool.full_requests:,}"),
    ]
    pools = [report.pool] if report.pool == report.whole else [report.pool, report.whole]
    lines = [f"{label:<30} {value:>22}" for label, value in facts]
    lines += [
        f"{label:<30} {value(pools[0]):>22}" + "".join(f"{value(p):>16}" for p in pools[1:])
        for label, value in of_pools
    ]
    return "\n".join(lines)


def _percent(pool: PoolSize) -> str:
    return f"{pool.fraction:.0%}"


def _misfit(report: SizeReport) -> str:
    if not report.left_bytes:
        weights, memory = format_size(report.weights_bytes), format_size(report.memory_bytes)
        return f"{report.model} does not fit: its weights take {weights} in {report.dtype}, and {memory} are there"
    return (
        f"{report.model} does not fit: {_percent(report.pool)} of what the weights leave holds {report.pool.tokens:,} "
        f"tokens of KV cache, and a request may have {report.max_model_len:,}"
    )


def _advice(what_fits: WhatFits) -> str:
    ways = [
        ("--dtype", what_fits.dtype),
        ("--kv-memory-fraction", what_fits.kv_memory_fraction),
        ("--max-model-len", what_fits.max_model_len),
        ("--kv-cache-dtype", what_fits.kv_cache_dtype),
    ]
    named = [f"{flag} {value}" for flag, value in ways if value is not None]
    return "it would with " + " or ".join([*named, f"{format_size(what_fits.memory_bytes)} of memory"])


def _memory(text: str) -> int:
    try:
        size = parse_memory(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    assert isinstance(size, int)
    return size


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"must be above 0 and at most 1, got {text}")
    return value


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 2**31):
        raise argparse.ArgumentTypeError(f"must be a number of tokens, got {text!r}")
    return int(text)


def _block(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 6 and int(text) and int(text) % 16 == 0):
        raise argparse.ArgumentTypeError(f"must be a multiple of 16, got {text!r}")
    return int(text)
