"""Channel arguments that decide over calls before any handler sees them."""

from __future__ import annotations

from weir.client.channel import channel_options
from weir.config import ServerSettings
from weir.server.options import server_options


def test_one_message_limit_holds_in_both_directions() -> None:
    options = dict(server_options(ServerSettings(max_message_bytes=123_456), 10))
    assert options["grpc.max_receive_message_length"] == options["grpc.max_send_message_length"] == 123_456


def test_a_client_may_ping_every_ten_seconds_while_its_unary_call_waits() -> None:
    options = dict(server_options(ServerSettings(), 10))
    assert options["grpc.http2.min_ping_interval_without_data_ms"] == 5_000
    assert options["grpc.keepalive_permit_without_calls"] == 1


def test_our_own_client_pings_no_faster_than_our_server_allows() -> None:
    allowed = dict(server_options(ServerSettings(), 10))["grpc.http2.min_ping_interval_without_data_ms"]
    assert dict(channel_options(1))["grpc.keepalive_time_ms"] >= allowed


def test_connections_live_for_ever_unless_an_age_is_set() -> None:
    assert "grpc.max_connection_age_ms" not in dict(server_options(ServerSettings(), 10))
    assert dict(server_options(ServerSettings(max_connection_age_s=90), 10))["grpc.max_connection_age_ms"] == 90_000
