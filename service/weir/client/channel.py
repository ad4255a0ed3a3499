"""What both clients tell gRPC about the connection."""

from __future__ import annotations

import grpc

from weir.client import checks
from weir.client.errors import Violation, WrongTypeError
from weir.client.target import Target

DEFAULT_MAX_MESSAGE_BYTES = 4 * 2**20
DEFAULT_MAX_ATTEMPTS = 3
DEFAULT_CONNECT_TIMEOUT_S = 5.0
READY_POLL_S = 0.1
# Why a server that answers health checks takes no work.
NOT_READY = "it loads its model, or drains"


def channel_options(
    max_message_bytes: int, connect_timeout_s: float = DEFAULT_CONNECT_TIMEOUT_S, target: Target | None = None
) -> list[tuple[str, int | str]]:
    """Channel arguments: one message limit for both directions, dead servers noticed, quick reconnects.

    Raises InvalidRequestError for a number that makes no sense.
    """
    limit = checks.whole("max_message_bytes", max_message_bytes, at_least=1)
    connect_ms = round(1000 * min(checks.number("connect_timeout_s", connect_timeout_s, at_least=0.001), 86_400))
    options: list[tuple[str, int | str]] = [
        ("grpc.max_receive_message_length", limit),
        ("grpc.max_send_message_length", limit),
        # Behind a headless Service a name is many pods: spread the calls, and leave a pod that is gone.
        ("grpc.lb_policy_name", "round_robin"),
        # The server allows a ping each 10 s.
        ("grpc.keepalive_time_ms", 20_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        # The first is also how long one attempt may take, from the first packet to the peer's HTTP/2 settings.
        ("grpc.min_reconnect_backoff_ms", connect_ms),
        ("grpc.dns_ares_query_timeout", connect_ms),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 2_000),
        # gRPC's own retry would act without a pushback too; `weir.client.retry` does not.
        ("grpc.enable_retries", 0),
    ]
    if target is not None and target.local:
        # A proxy knows its own loopback, not this one.
        options.append(("grpc.enable_http_proxy", 0))
    return options


def checked_credentials(credentials: grpc.ChannelCredentials | None) -> grpc.ChannelCredentials | None:
    """Raises InvalidRequestError for anything that is none; None is plaintext."""
    if credentials is not None and not isinstance(credentials, grpc.ChannelCredentials):
        described = f"must come from grpc.ssl_channel_credentials, got {checks.shown(credentials)}"
        raise WrongTypeError.of([Violation("credentials", described)])
    return credentials
