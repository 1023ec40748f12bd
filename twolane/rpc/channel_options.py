"""All gRPC channel and server options of twolane.

`http2.ping_timeout_ms` (default 60 s) overrides `keepalive_timeout_ms`, so both are set: a dead
peer is detected within 10 + 3 seconds even on an idle connection. That bound holds for every ping,
also for those by which gRPC measures bandwidth while data comes: with them a process that pauses
for 3 seconds would lose all streams, so there are none. Windows then stay as large as they begin.
"""

from __future__ import annotations

MAX_MESSAGE_BYTES = 16 * 1024 * 1024
SILENCE_S = 10  # after which the other side of a connection is asked for a sign of life
SIGN_OF_LIFE_S = 3
WINDOW_BYTES = 1 << 20  # that may come unread on a stream: 10 MB/s at 100 ms, not 0.6 as by default

_KEEPALIVE: list[tuple[str, int]] = [
    ("grpc.keepalive_time_ms", SILENCE_S * 1000),
    ("grpc.keepalive_timeout_ms", SIGN_OF_LIFE_S * 1000),
    ("grpc.http2.ping_timeout_ms", SIGN_OF_LIFE_S * 1000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", WINDOW_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
]

CHANNEL_OPTIONS: list[tuple[str, int]] = [
    *_KEEPALIVE,
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 3_000),  # timeout of one attempt to connect
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.use_local_subchannel_pool", 1),
]

# Handlers bound streams and pending calls, and tell clients the reason. gRPC's own bounds reset a
# stream or cancel a call without a reason, so they are set too high to be reached.
_SERVER: list[tuple[str, int]] = [
    *_KEEPALIVE,
    ("grpc.max_concurrent_streams", 100_000),
    ("grpc.server.max_pending_requests", 100_000),
    ("grpc.server.max_pending_requests_hard_limit", 200_000),
    ("grpc.server_max_unrequested_time_in_server", 3_600),  # seconds that a call may be pending
    ("grpc.compression_enabled_algorithms_bitset", 1),  # none: no small message inflates
    ("grpc.server_handshake_timeout_ms", 10_000),  # of TLS
    ("grpc.http2.settings_timeout", 10_000),  # from the first byte to the peer's SETTINGS frame
    ("grpc.so_reuseport", 0),
]

# Between our own processes, where streams live as long as the processes. gRPC sends pings not only
# for keepalive; by default, the third ping in quick succession closes the connection and all its
# streams.
INTERNAL_SERVER_OPTIONS: list[tuple[str, int]] = [*_SERVER, ("grpc.http2.max_ping_strikes", 0)]

# For clients' connections: floods of pings are cut off, and connections are closed after an hour so
# that a load balancer can move them.
DOOR_SERVER_OPTIONS: list[tuple[str, int]] = [
    *_SERVER,
    ("grpc.http2.max_ping_strikes", 100),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    ("grpc.max_connection_age_ms", 3_600_000),
    ("grpc.max_connection_age_grace_ms", 600_000),
]


def door_server_options(
    *, message_bytes: int, connections: int, idle_s: float, shares_port: bool = False
) -> list[tuple[str, int]]:
    """Options of a server for clients. `message_bytes` bounds the messages that clients send; the
    bound of messages to clients stays. With `shares_port`, other servers may listen at the same
    port."""
    ours = ("grpc.max_receive_message_length", "grpc.so_reuseport")
    return [
        *(option for option in DOOR_SERVER_OPTIONS if option[0] not in ours),
        ("grpc.so_reuseport", int(shares_port)),
        ("grpc.max_receive_message_length", message_bytes),
        ("grpc.max_allowed_incoming_connections", connections),
        ("grpc.max_connection_idle_ms", int(idle_s * 1000)),
    ]
