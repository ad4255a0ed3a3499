"""What all commands that talk to a server share: the flags that find it, and errors as one line and an exit code."""

from __future__ import annotations

import argparse
import io
import logging
import os
import re
import ssl
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

import grpc

from weir.client import (
    AsyncClient,
    BudgetExhaustedError,
    Client,
    ConnectionLostError,
    DeadlineError,
    InvalidRequestError,
    MessageTooLargeError,
    RequestCancelledError,
    UnauthenticatedError,
    UnavailableError,
    WeirError,
)
from weir.client.channel import DEFAULT_CONNECT_TIMEOUT_S
from weir.commands.flags import positive
from weir.exit_codes import FAILED, INTERRUPTED, TRY_LATER, WRONG_USAGE
from weir.token_lines import token_lines

DEFAULT_TARGET = "127.0.0.1:50051"
TARGET_VARIABLE = "WEIR_TARGET"

# What gRPC says before it comes to the point: "...; last error: UNKNOWN: ipv4:10.0.0.1:50051: Connection refused".
_PREAMBLE = re.compile(r".*last error: (?:[A-Z_]+: )?(?:ipv[46]:\S+: |unix:\S+: )?")


class UsageError(Exception):
    """A flag, a file or an input is wrong; the message says which and how."""


def add_target_arguments(parser: argparse.ArgumentParser, otherwise: str | None = None) -> None:
    """Add the flags that say which server, how to reach it, and who calls.

    otherwise: what a command does without a target; such a command looks at the environment itself.
    """
    group = parser.add_argument_group("server")
    group.add_argument(
        "--target",
        default=None if otherwise else os.environ.get(TARGET_VARIABLE) or DEFAULT_TARGET,
        metavar="HOST:PORT",
        help="port 50051 when left out, unix:PATH for a socket "
        f"(default: {TARGET_VARIABLE}, else {otherwise or DEFAULT_TARGET})",
    )
    group.add_argument(
        "--connect-timeout",
        type=positive,
        default=DEFAULT_CONNECT_TIMEOUT_S,
        metavar="SECONDS",
        help="when a server that does not answer counts as unreachable (default: %(default)g)",
    )
    group.add_argument("--tls", action="store_true", help="encrypt, and check the server's certificate")
    group.add_argument("--tls-ca", type=Path, metavar="FILE", help="authority that signed the server; implies --tls")
    group.add_argument("--tls-cert", type=Path, metavar="FILE", help="certificate to show to the server; implies --tls")
    group.add_argument("--tls-key", type=Path, metavar="FILE", help="key of that certificate")
    group.add_argument("--token-file", type=Path, metavar="FILE", help="bearer token to send: the file's first line")
    group.add_argument("--tenant", default="", help="whose share of the queue and the KV budget to use")


@dataclass(frozen=True, slots=True)
class Connection:
    """What the flags say of a server."""

    target: str
    connect_timeout_s: float
    credentials: grpc.ChannelCredentials | None
    token: str
    tenant: str

    @classmethod
    def of(cls, args: argparse.Namespace) -> Connection:
        """Read the files that the flags name. Raises UsageError."""
        return cls(
            args.target,
            args.connect_timeout,
            _credentials(args.tls, args.tls_ca, args.tls_cert, args.tls_key),
            _token(args.token_file),
            args.tenant,
        )

    def client(self) -> Client:
        """For one thread. Raises InvalidRequestError."""
        return Client(
            self.target,
            credentials=self.credentials,
            tenant=self.tenant,
            token=self.token,
            connect_timeout_s=self.connect_timeout_s,
        )

    def async_client(self) -> AsyncClient:
        """For asyncio. Raises InvalidRequestError."""
        return AsyncClient(
            self.target,
            credentials=self.credentials,
            tenant=self.tenant,
            token=self.token,
            connect_timeout_s=self.connect_timeout_s,
        )


def connect(args: argparse.Namespace) -> Client:
    """The client that the flags describe. Raises UsageError, InvalidRequestError."""
    return Connection.of(args).client()


def _credentials(tls: bool, ca: Path | None, cert: Path | None, key: Path | None) -> grpc.ChannelCredentials | None:
    """What gRPC would only find out while connecting, and tell as a server that does not answer, is checked here."""
    if (cert is None) != (key is None):
        raise UsageError("--tls-cert and --tls-key go together: give both or none")
    if not (tls or ca or cert):
        return None
    pems = {flag: _read(flag, path) for flag, path in (("--tls-ca", ca), ("--tls-key", key), ("--tls-cert", cert))}
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        if ca:
            context.load_verify_locations(ca)
    except ssl.SSLError:
        raise UsageError(f"--tls-ca: {ca} holds no certificate in PEM form") from None
    try:
        if cert and key:
            # A key under a password would be asked for on the terminal.
            context.load_cert_chain(cert, key, password="")
    except ssl.SSLError:
        raise UsageError(f"--tls-cert and --tls-key: {cert} and {key} are no certificate and its open key") from None
    return grpc.ssl_channel_credentials(pems["--tls-ca"], pems["--tls-key"], pems["--tls-cert"])


def _token(path: Path | None) -> str:
    if path is None:
        return ""
    try:
        lines = token_lines((_read("--token-file", path) or b"").decode())
    except UnicodeDecodeError:
        raise UsageError(f"--token-file: {path} is not text") from None
    except ValueError as error:
        raise UsageError(f"--token-file: {path}: {error}") from None
    if not lines:
        raise UsageError(f"--token-file: {path} holds no token")
    return lines[0].token


def _read(flag: str, path: Path | None) -> bytes | None:
    try:
        return path.read_bytes() if path else None
    except OSError as error:
        raise UsageError(f"{flag}: {path}: {error.strerror}") from None


def reporting_errors(command: str, work: Callable[[], int], target: str = "the target") -> int:
    """Run `work`; turn an error into one line on stderr and its exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal that cannot show a character shows a mark instead.
        sys.stdout.reconfigure(errors="replace")
    with _telling_pauses(command):
        try:
            return work()
        except WeirError as error:
            print(f"weir {command}: {explain(error, target)}", file=sys.stderr)
            return exit_code(error)
        except UsageError as error:
            print(f"weir {command}: {error}", file=sys.stderr)
            return WRONG_USAGE


@contextmanager
def _telling_pauses(command: str) -> Iterator[None]:
    """Print what the client logs: that it waits, why, and for how long."""
    log = logging.getLogger("weir.client")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(f"weir {command}: %(message)s"))
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)


def exit_code(error: WeirError) -> int:
    """The exit code that tells a script what to do about an error."""
    match error:
        case InvalidRequestError() | MessageTooLargeError() | UnauthenticatedError():
            return WRONG_USAGE
        case BudgetExhaustedError() | UnavailableError() | DeadlineError():
            return TRY_LATER
        case RequestCancelledError():
            return INTERRUPTED
        case _:
            return FAILED


def explain(error: WeirError, target: str) -> str:
    """The error as a sentence for whoever typed the command."""
    if isinstance(error, UnauthenticatedError):
        return f"{error.message.partition(' (')[0]}: see --token-file"
    if isinstance(error, UnavailableError) and error.reason is None and not isinstance(error, ConnectionLostError):
        return f"no server answers at {target}: {unquote(_PREAMBLE.sub('', error.message))}"
    if error.code == "UNIMPLEMENTED":
        return f"{target} is no weir server, or one of another version: {error.message}"
    return error.message
