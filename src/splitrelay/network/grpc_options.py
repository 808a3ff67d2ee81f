"""What gRPC is told of our limits, and how many may be here at once."""

from __future__ import annotations

import resource

from splitrelay.errors import OutOfRange
from splitrelay.network import limits
from splitrelay.network.connection_handler import House

SERVICE = "splitrelay.Relay"
# A compressed message stays as it is, and is refused as none of ours: decompressed it could take a thousand times its
# length. The option that forbids compression (grpc.compression_enabled_algorithms_bitset) does the same, but makes gRPC
# write a line to stderr for each attempt.
PLAIN = (("grpc.per_message_decompression", 0), ("grpc.default_compression_algorithm", 0))
OPTIONS = (
    *PLAIN,
    ("grpc.max_receive_message_length", limits.MESSAGE),
    ("grpc.max_send_message_length", limits.MESSAGE),
    ("grpc.so_reuseport", 0),  # a second server on the same port must fail, not share it
)


def options(house: House) -> tuple[tuple[str, int], ...]:
    """The limits that gRPC sees to; past them it closes the stream, or the connection."""
    own = {
        "grpc.max_receive_message_length": house.largest,
        "grpc.max_concurrent_streams": limits.STREAMS,
        "grpc.max_allowed_incoming_connections": connections(),
        "grpc.server_handshake_timeout_ms": int(1000 * limits.HANDSHAKE),
        "grpc.max_connection_idle_ms": int(1000 * limits.IDLE),
    }
    return tuple({**dict(OPTIONS), **own}.items())


def connections() -> int:
    """How many there may be: files that are open to strangers must not be those that the journal needs."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return limits.CONNECTIONS if most == resource.RLIM_INFINITY else min(limits.CONNECTIONS, most - limits.SPARE)


def refuse_too_many(clients: int) -> None:
    """Each takes a connection."""
    most = min(limits.CLIENTS, connections())
    if clients > most:
        hint = "Raise ulimit -n, or take a smaller M."
        raise OutOfRange("clients at once", value=clients, limit=f"<= {most}", hint=hint)
