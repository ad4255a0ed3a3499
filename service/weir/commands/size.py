"""`weir size MODEL`: what a model needs, and what a memory holds of it."""

from __future__ import annotations

import argparse
import sys

from weir.config import parse_size
from weir.engine.size import SizeReport, size_report
from weir.exit_codes import OK, WRONG_USAGE
from weir.models.errors import ModelError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `weir size`."""
    parser.add_argument("model", help="a model folder; only its config is read")
    parser.add_argument("--memory", type=_bytes, default="24GiB", metavar="SIZE", help="(default: %(default)s)")
    parser.add_argument("--block-size", type=int, default=16, metavar="TOKENS", help="(default: %(default)s)")
    parser.add_argument("--dtype", default="auto", help="number type of weights and KV cache (default: the config's)")
    parser.add_argument(
        "--kv-cache-dtype", default="auto", choices=("auto", "fp8_e4m3"), help="another type of the KV cache"
    )


def run(args: argparse.Namespace) -> int:
    """Print the arithmetic."""
    try:
        report = size_report(args.model, args.memory, args.block_size, args.dtype, args.kv_cache_dtype)
    except (ModelError, ValueError) as error:
        print(f"weir size: {error}", file=sys.stderr)
        return WRONG_USAGE
    for label, value in _rows(report):
        print(f"{label:<34} {value:>16}")
    return OK


def _rows(report: SizeReport) -> list[tuple[str, str]]:
    return [
        ("model", report.model),
        ("architecture", report.architecture),
        ("dtype", report.dtype),
        ("parameters", f"{report.parameters:,}"),
        ("weights", _human(report.weights_bytes)),
        ("KV cache a token", _human(report.kv_bytes_per_token)),
        ("KV cache a token and layer", _human(report.kv_bytes_per_token_layer)),
        ("memory", _human(report.memory_bytes)),
        ("left for the KV cache", _human(report.kv_memory_bytes)),
        (f"KV blocks of {report.block_size} tokens", f"{report.kv_blocks:,}"),
        ("KV tokens", f"{report.kv_tokens:,}"),
        (f"requests of {report.max_model_len:,} tokens", f"{report.full_requests:,}"),
    ]


def _bytes(text: str) -> int:
    try:
        return int(parse_size(text))  # type: ignore[call-overload, no-any-return]
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _human(size: int) -> str:
    value, unit = float(size), "B"
    for bigger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, bigger
    return f"{value:,.0f} {unit}" if value == int(value) else f"{value:,.2f} {unit}"
