"""What both clients tell gRPC about the connection."""

from __future__ import annotations

DEFAULT_MAX_MESSAGE_BYTES = 4 * 2**20
DEFAULT_MAX_ATTEMPTS = 3
READY_POLL_S = 0.1

Metadata = tuple[tuple[str, str], ...]


def channel_options(max_message_bytes: int) -> list[tuple[str, int | str]]:
    """Channel arguments: one message limit for both directions, dead servers noticed, quick reconnects."""
    return [
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", max_message_bytes),
        # Behind a headless Service a name is many pods: spread the calls, and leave a pod that is gone.
        ("grpc.lb_policy_name", "round_robin"),
        # The server allows a ping each 10 s.
        ("grpc.keepalive_time_ms", 20_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 2_000),
        # gRPC's own retry would act without a pushback too; `weir.client.retry` does not.
        ("grpc.enable_retries", 0),
    ]


def identity(tenant: str, token: str) -> Metadata:
    """The metadata that says who calls."""
    found = []
    if tenant:
        found.append(("x-tenant-id", tenant))
    if token:
        found.append(("authorization", f"Bearer {token}"))
    return tuple(found)
