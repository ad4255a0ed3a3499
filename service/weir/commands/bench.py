"""`weir bench`: throughput and latency of a workload, in process or against a server."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path

from weir import config
from weir.bench.report import Report
from weir.bench.workload import WorkloadError, read_workload
from weir.client import WeirError
from weir.exit_codes import FAILED, WRONG_USAGE


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The workload and where to run it; in process, every engine setting is a flag too."""
    parser.add_argument("--workload", required=True, metavar="FILE", help="JSON workload: prompt_token_ids, max_tokens")
    parser.add_argument("--target", metavar="HOST:PORT", help="a running server; default: an engine in this process")
    parser.add_argument("--rate", type=float, metavar="R", help="open loop: Poisson arrivals, R requests a second")
    parser.add_argument("--concurrency", type=int, metavar="N", help="closed loop over gRPC: N streams at a time")
    parser.add_argument("--json", metavar="OUT", help="write all figures to this file")
    config.add_flags(parser, "model", "engine")


def run(args: argparse.Namespace) -> int:
    """Measure once and print the figures."""
    if any(value is not None and value <= 0 for value in (args.rate, args.concurrency)):
        print("weir bench: --rate and --concurrency must be above 0", file=sys.stderr)
        return WRONG_USAGE
    try:
        report = _measure(args)
    except (WorkloadError, config.ConfigError) as error:
        print(f"weir bench: {error}", file=sys.stderr)
        return WRONG_USAGE
    except WeirError as error:
        print(f"weir bench: {error}", file=sys.stderr)
        return FAILED
    print(report.to_text())
    if args.json:
        Path(args.json).write_text(json.dumps(report.to_json(), indent=2) + "\n")
    return 0


def _measure(args: argparse.Namespace) -> Report:
    workload = read_workload(args.workload)
    if args.target:
        from weir.bench.over_grpc import run_over_grpc

        return asyncio.run(run_over_grpc(args.target, workload, rate=args.rate, concurrency=args.concurrency))
    from weir.engine.openmp import sleep_between_steps

    sleep_between_steps()
    from weir.bench.in_process import run_in_process, warm_up
    from weir.engine.load import load_engine

    core = load_engine(config.load(args))
    warm_up(core, workload)
    return run_in_process(core, workload, args.rate)
