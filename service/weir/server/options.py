"""gRPC channel arguments of the server, each with its reason."""

from __future__ import annotations

from weir.config import ServerSettings

KEEPALIVE_TIME_MS = 10_000
KEEPALIVE_TIMEOUT_MS = 5_000
MIN_PING_INTERVAL_MS = 10_000


def server_options(settings: ServerSettings) -> list[tuple[str, int]]:
    """The arguments for grpc.aio.server."""
    options = [
        # One limit for both directions, so that what a client may send, the server may answer.
        ("grpc.max_receive_message_length", settings.max_message_bytes),
        ("grpc.max_send_message_length", settings.max_message_bytes),
        ("grpc.max_concurrent_streams", settings.max_concurrent_streams),
        # A client that vanished without closing is noticed, and its KV blocks freed, within 15 s.
        ("grpc.keepalive_time_ms", KEEPALIVE_TIME_MS),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        # A unary call may wait minutes without a data frame; clients that ping meanwhile must not be sent away.
        ("grpc.http2.min_recv_ping_interval_without_data_ms", MIN_PING_INTERVAL_MS),
        # A second server on the same port is an error, not a silent split of the traffic.
        ("grpc.so_reuseport", 0),
        ("grpc.enable_channelz", 1),
    ]
    if settings.max_connection_age_s is not None:
        # Running streams finish on the old connection; new calls open a new one, and so find new replicas.
        options.append(("grpc.max_connection_age_ms", max(1, round(settings.max_connection_age_s * 1000))))
    return options
