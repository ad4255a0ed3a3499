"""What all commands that talk to a server share: the flags that find it, and errors as one line and an exit code."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import grpc

from weir.client import (
    BudgetExhaustedError,
    Client,
    DeadlineError,
    InvalidRequestError,
    MessageTooLargeError,
    RequestCancelledError,
    UnavailableError,
    WeirError,
)
from weir.exit_codes import FAILED, INTERRUPTED, TRY_LATER, WRONG_USAGE

DEFAULT_TARGET = "127.0.0.1:50051"


def add_target_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags that say which server, how to reach it, and who calls."""
    group = parser.add_argument_group("server")
    group.add_argument("--target", default=DEFAULT_TARGET, metavar="HOST:PORT", help="(default: %(default)s)")
    group.add_argument("--tls", action="store_true", help="encrypt, and check the server's certificate")
    group.add_argument("--tls-ca", type=Path, metavar="FILE", help="authority that signed the server; implies --tls")
    group.add_argument("--tls-cert", type=Path, metavar="FILE", help="certificate to show to the server; implies --tls")
    group.add_argument("--tls-key", type=Path, metavar="FILE", help="key of that certificate")
    group.add_argument("--token-file", type=Path, metavar="FILE", help="bearer token to send: the file's first line")
    group.add_argument("--tenant", default="", help="whose share of the queue and the KV budget to use")


def connect(args: argparse.Namespace) -> Client:
    """The client that the flags describe. Raises OSError when a file cannot be read."""
    return Client(args.target, credentials=_credentials(args), tenant=args.tenant, token=_token(args.token_file))


def _credentials(args: argparse.Namespace) -> grpc.ChannelCredentials | None:
    if not (args.tls or args.tls_ca or args.tls_cert):
        return None
    ca, key, cert = (path.read_bytes() if path else None for path in (args.tls_ca, args.tls_key, args.tls_cert))
    return grpc.ssl_channel_credentials(ca, key, cert)


def _token(path: Path | None) -> str:
    lines = (line.strip() for line in path.read_text().splitlines()) if path else ()
    return next((line for line in lines if line and not line.startswith("#")), "")


def reporting_errors(command: str, work: Callable[[], int]) -> int:
    """Run `work`; turn an error into one line on stderr and its exit code."""
    try:
        return work()
    except WeirError as error:
        print(f"weir {command}: {_explain(error)}", file=sys.stderr)
        return exit_code(error)
    except OSError as error:
        print(f"weir {command}: {error}", file=sys.stderr)
        return WRONG_USAGE


def exit_code(error: WeirError) -> int:
    """The exit code that tells a script what to do about an error."""
    match error:
        case InvalidRequestError() | MessageTooLargeError():
            return WRONG_USAGE
        case BudgetExhaustedError() | UnavailableError() | DeadlineError():
            return TRY_LATER
        case RequestCancelledError():
            return INTERRUPTED
        case _:
            return FAILED


def _explain(error: WeirError) -> str:
    if isinstance(error, UnavailableError) and error.reason is None:
        return f"no server answers: {error.message}"
    return error.message
