"""`weir bench`: throughput and latency of a workload, in process or against a server."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from weir.bench.over_grpc import run_with
from weir.bench.random_prompts import RandomPrompts
from weir.bench.report import Report
from weir.bench.sharegpt import ShareGpt
from weir.bench.workload import Served, Source, Workload, WorkloadError, check_fits, read_workload
from weir.client import Client, InvalidRequestError, ServerError
from weir.client.errors import Failure
from weir.commands.flags import count, positive
from weir.commands.target import TARGET_VARIABLE, Connection, UsageError, add_target_arguments, reporting_errors
from weir.exit_codes import FAILED, OK
from weir.progress import Progress

if TYPE_CHECKING:
    from weir.config import Settings
    from weir.engine.core import EngineCore

LOADING_S = 600.0
POLL_S = 0.5
DEFAULT_REQUESTS = 200


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The workload and where to run it; in process, every engine setting is a flag too."""
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--workload", type=Path, metavar="FILE", help="JSON workload: prompt_token_ids, max_tokens")
    what.add_argument(
        "--random", type=_random, metavar="N,IN,OUT", help="N prompts of IN random tokens, OUT tokens each"
    )
    what.add_argument(
        "--dataset", type=Path, metavar="FILE", help="ShareGPT JSON: first turns, answered at their length"
    )
    parser.add_argument(
        "--requests", type=count, metavar="N", help=f"how many of a --dataset (default: {DEFAULT_REQUESTS})"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of --random and --dataset (default: 0)")
    parser.add_argument("--rate", type=positive, metavar="R", help="open loop: Poisson arrivals, R requests a second")
    parser.add_argument("--concurrency", type=count, metavar="N", help="closed loop over gRPC: N streams at a time")
    parser.add_argument("--json", metavar="OUT", help="write all figures to this file; - is stdout")
    add_target_arguments(parser, otherwise="an engine in this process")
    config = _config()
    if config is not None:
        config.add_flags(parser, "model", "engine")


def run(args: argparse.Namespace) -> int:
    """Measure once and print the figures."""
    return reporting_errors("bench", lambda: _bench(args), args.target or os.environ.get(TARGET_VARIABLE, ""))


def _bench(args: argparse.Namespace) -> int:
    if args.json not in (None, "-"):
        _check_writable(Path(args.json))
    try:
        source = _source(args)
        target = _target(args)
        report = _in_process(args, source) if target is None else _over_grpc(args, target, source)
    except WorkloadError as error:
        raise UsageError(str(error)) from None
    figures = json.dumps(report.to_json(), indent=2)
    print(report.to_text(), file=sys.stderr if args.json == "-" else sys.stdout)
    if args.json == "-":
        print(figures)
    elif args.json:
        Path(args.json).write_text(figures + "\n")
    return FAILED if report.failed else OK


def _source(args: argparse.Namespace) -> Source:
    """Everything about the workload that can be wrong before the model is known."""
    if args.requests is not None and args.dataset is None:
        raise UsageError("--requests is for --dataset")
    if args.random is not None:
        shape: RandomPrompts = args.random
        return RandomPrompts(shape.requests, shape.prompt_tokens, shape.output_tokens, args.seed)
    if args.dataset is not None:
        return ShareGpt.read(args.dataset, args.requests or DEFAULT_REQUESTS, args.seed)
    workload = read_workload(args.workload)
    return lambda served: workload


def _target(args: argparse.Namespace) -> str | None:
    """The server to measure; None: an engine in this process. Flags of an engine weigh more than the environment."""
    of_engine = [name for name, value in vars(args).items() if ("." in name or name == "config") and value is not None]
    if args.target:
        if of_engine:
            flag = "--" + of_engine[0].rpartition(".")[2].removesuffix("_s").removesuffix("_bytes").replace("_", "-")
            raise UsageError(f"{flag} is for an engine in this process, and --target names a server")
        return str(args.target)
    return None if of_engine else os.environ.get(TARGET_VARIABLE) or None


def _over_grpc(args: argparse.Namespace, target: str, source: Source) -> Report:
    args.target = target
    connection = Connection.of(args)
    with connection.client() as client:
        _wait_while_loading(client)
        model = client.model()
        served = Served(
            model.vocab_size,
            model.max_model_len,
            client.tokenize,
            lambda said: client.tokenize(messages=[{"role": "user", "content": said}]),
            (InvalidRequestError,),
        )
        workload = _prepared(source, served)

    async def send(progress: Progress) -> Report:
        async with connection.async_client() as client:
            return await run_with(
                client, workload, rate=args.rate, concurrency=args.concurrency, count_tokens=progress.add
            )

    with Progress("weir bench:", workload.output_tokens, "tokens") as progress:
        return asyncio.run(send(progress))


def _wait_while_loading(client: Client) -> None:
    """A server that is there and loads is worth waiting for. One that is not there raises UnavailableError."""
    with Progress("weir bench: waiting for the server to load its model"):
        deadline = time.monotonic() + LOADING_S
        while not client.health() and time.monotonic() < deadline:
            time.sleep(POLL_S)


def _in_process(args: argparse.Namespace, source: Source) -> Report:
    if args.concurrency is not None:
        raise UsageError(
            "--concurrency needs a server: an engine in this process gets everything at once, or by --rate"
        )
    with _server_packages():
        from weir import config
        from weir.models.errors import ModelError
        from weir.models.folder import check_model_folder

        try:
            settings = config.load(args)
            if settings.model.load_format == "auto":
                check_model_folder(Path(settings.model.model))
            core, served = _load(settings, with_tokenizer=args.dataset is not None)
        except (config.ConfigError, ModelError) as error:
            raise UsageError(str(error)) from None
    from weir.bench.in_process import run_in_process, warm_up
    from weir.engine.errors import InvalidRequestError as Impossible
    from weir.engine.errors import RequestError

    workload = _prepared(source, served)
    try:
        warm_up(core, workload)
        with Progress("weir bench:", workload.output_tokens, "tokens") as progress:
            return run_in_process(core, workload, args.rate, progress.add)
    except Impossible as error:
        raise UsageError(str(error)) from None
    except RequestError as error:
        raise ServerError(Failure("INTERNAL", str(error))) from None


def _load(settings: Settings, *, with_tokenizer: bool) -> tuple[EngineCore, Served]:
    """Raises ConfigError, ModelError."""
    from weir.engine.openmp import sleep_between_steps

    # Before torch is imported, which is next.
    sleep_between_steps()
    with Progress("weir bench: loading the model"):
        from weir.engine.load import load_engine
        from weir.models.errors import PromptError
        from weir.models.tokenizer import Tokenizer

        tokenizer = Tokenizer(settings.model.model) if with_tokenizer else None
        core = load_engine(settings)

    def encode(text: str) -> list[int]:
        return tokenizer.encode(text) if tokenizer else []

    def encode_chat(said: str) -> list[int]:
        return tokenizer.encode_chat([{"role": "user", "content": said}]) if tokenizer else []

    return core, Served(core.info.vocab_size, core.info.max_model_len, encode, encode_chat, (PromptError,))


def _prepared(source: Source, served: Served) -> Workload:
    with Progress("weir bench: making the prompts"):
        workload = source(served)
    check_fits(workload, served)
    return workload


@contextmanager
def _server_packages() -> Iterator[None]:
    """Turns a package that the client's install leaves out into a sentence."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("weir"):
            raise
        raise UsageError(
            f"an engine in this process needs {error.name}: pip install 'weir-llm[server]'; "
            f"or name a server with --target or {TARGET_VARIABLE}"
        ) from None


def _config() -> ModuleType | None:
    """The settings of the engine; None in an install that can only be a client."""
    try:
        from weir import config
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("weir"):
            raise
        return None
    return config


def _random(text: str) -> RandomPrompts:
    try:
        return RandomPrompts.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _check_writable(path: Path) -> None:
    """A report that cannot be written is better known before the run than after it. Raises UsageError."""
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UsageError(f"--json: {path} cannot be written")
