"""gRPC channel arguments of the server, each with its reason. gRPC ignores names it does not know, without a word."""

from __future__ import annotations

from weir.config import ServerSettings

KEEPALIVE_TIME_MS = 10_000
KEEPALIVE_TIMEOUT_MS = 5_000
MIN_PING_INTERVAL_MS = 5_000
HANDSHAKE_TIMEOUT_MS = 10_000
# As many as an int holds: connections times streams bound what waits, and the queue refuses with a reason.
MAX_PENDING_REQUESTS = 2**31 - 2


def server_options(
    settings: ServerSettings, max_connections: int, min_ping_interval_ms: int = MIN_PING_INTERVAL_MS
) -> list[tuple[str, int]]:
    """The arguments for grpc.aio.server."""
    options = [
        # One limit for both directions, so that what a client may send, the server may answer.
        ("grpc.max_receive_message_length", settings.max_message_bytes),
        ("grpc.max_send_message_length", settings.max_message_bytes),
        ("grpc.max_concurrent_streams", settings.max_concurrent_streams),
        # Beyond a thousand calls that wait for the event loop, gRPC would end some at random with a bare CANCELLED.
        ("grpc.server.max_pending_requests", MAX_PENDING_REQUESTS),
        ("grpc.server.max_pending_requests_hard_limit", MAX_PENDING_REQUESTS + 1),
        # A client that vanished without closing is noticed, and its KV blocks freed, within 15 s. The second timeout
        # is the one that counts for a peer whose kernel goes on acknowledging; it is a minute otherwise.
        ("grpc.keepalive_time_ms", KEEPALIVE_TIME_MS),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
        ("grpc.http2.ping_timeout_ms", KEEPALIVE_TIMEOUT_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        # A call may wait minutes without a data frame, and clients that ping meanwhile must not be sent away. They use
        # intervals down to 10 s, and a ping may come a little early: hence half of that. gRPC bears two that are early.
        ("grpc.http2.min_ping_interval_without_data_ms", min_ping_interval_ms),
        # Connections: how many, how long one may take to begin, and how long one may do nothing.
        ("grpc.max_allowed_incoming_connections", max_connections),
        ("grpc.server_handshake_timeout_ms", HANDSHAKE_TIMEOUT_MS),
        ("grpc.max_connection_idle_ms", max(1, round(settings.max_connection_idle_s * 1000))),
        # A second server on the same port is an error, not a silent split of the traffic.
        ("grpc.so_reuseport", 0),
        ("grpc.enable_channelz", 1),
    ]
    if settings.max_connection_age_s is not None:
        # Running streams finish on the old connection; new calls open a new one, and so find new replicas.
        options.append(("grpc.max_connection_age_ms", max(1, round(settings.max_connection_age_s * 1000))))
    return options
