"""Open gRPC channels to other hosts, check addresses, and explain why a connection failed."""

from __future__ import annotations

import grpc

from splitrelay.errors import InputError, SplitrelayError, WorkError
from splitrelay.network import limits

SERVICE = "splitrelay.Relay"
# A compressed message stays as it is, and is refused as none of ours: decompressed it could take a thousand times its
# length. The option that forbids compression (grpc.compression_enabled_algorithms_bitset) does the same, but makes gRPC
# write a line to stderr for each attempt.
PLAIN = (("grpc.per_message_decompression", 0), ("grpc.default_compression_algorithm", 0))
OPTIONS = (
    *PLAIN,
    ("grpc.max_receive_message_length", limits.MESSAGE),
    ("grpc.max_send_message_length", limits.MESSAGE),
    ("grpc.use_local_subchannel_pool", 1),  # else a new channel inherits the back-off of the one before it
)
PORTS = 65_535


class ConnectionLost(WorkError):
    """The server cannot be heard any more; the visit may go on over another connection."""


class AnswerTimeout(ConnectionLost):
    """The server did not answer a message in time."""


class SilenceTimeout(ConnectionLost):
    """The server sent nothing at all, not even a heartbeat, for too long."""


class UnknownHost(ConnectionLost):
    """The server's name is not known here; it may be mistyped."""


class UntrustedServer(ConnectionLost):
    """TLS refuses the server's certificate, or finds none: another attempt helps only after somebody has acted."""

    exit_code = InputError.exit_code


class ServerRefused(WorkError):
    """The server refused this client. If `final`, trying again makes no sense."""

    def __init__(self, why: str, final: bool) -> None:
        super().__init__(f"the server refused: {why}")
        self.final = final
        self.exit_code = InputError.exit_code if final else WorkError.exit_code


class ServerEnded(SplitrelayError):
    """The server has closed the run. If `again`, it will come back."""

    def __init__(self, why: str, again: bool) -> None:
        super().__init__(why)
        self.again = again


class VisitCancelled(SplitrelayError):
    """The server has cancelled the visit. Its results are not used."""


class AnswerLost(VisitCancelled):
    """The last messages of a visit were sent, their answer was lost, and the visit does not continue.

    The server may have committed it, for example if it was killed before it could say so.
    """


class ServerNotFound(WorkError):
    """No server was found within the time that the client waits."""


class ClientStopped(SplitrelayError):
    """The client was stopped while it connected."""


def is_final(error: SplitrelayError) -> bool:
    """Return whether another connection would not help."""
    return (isinstance(error, ServerRefused) and error.final) or (isinstance(error, ServerEnded) and not error.again)


def open_channel(address: str, credentials: grpc.ChannelCredentials | None) -> grpc.Channel:
    """A way to a server: over mutual TLS, or, where nobody else listens, without."""
    check_address(address)
    if credentials is None:
        return grpc.insecure_channel(address, OPTIONS)
    return grpc.secure_channel(address, credentials, OPTIONS)


def check_address(address: str, *, listen: bool = False) -> None:
    """HOST:PORT, with a port that there is; 0 only to listen, on any that is free."""
    host, colon, port = address.rpartition(":")
    if not host or not colon or (":" in host and not (host.startswith("[") and host.endswith("]"))):
        raise InputError("not an address", value=address, limit="HOST:PORT", hint="Write [::1]:7443 for IPv6.")
    first = 0 if listen else 1
    if not (port.isascii() and port.isdigit() and first <= int(port) <= PORTS):
        raise InputError(f"port of {address}", value=port, limit=f"{first} to {PORTS}")


# What gRPC says of a server that TLS refuses: what that means, and what to do about it.
DISTRUST = {
    "has expired": ("the certificate of {0} has expired", "Have it renewed there: splitrelay keys renew NAME"),
    "not yet valid": ("the certificate of {0} is not valid yet", "Set the clocks of both hosts."),
    "Hostname Verification": (
        "the certificate of {0} is not for this host",
        "Dial a host that it names, or issue it anew: splitrelay keys issue server --host {0}",
    ),
    "not in peer certificate": (
        "the certificate of {0} is not for this host",
        "Dial a host that it names, or issue it anew: splitrelay keys issue server --host {0}",
    ),
    "CERTIFICATE_VERIFY_FAILED": (
        "the certificate of {0} is not from our authority",
        "Use keys of the consortium whose server this is, or dial another address.",
    ),
    "WRONG_VERSION_NUMBER": (
        "{0} does not speak TLS",
        "Is it another program, or a server that was started with --insecure?",
    ),
}


def explain_distrust(details: str | None, address: str = "") -> UntrustedServer | None:
    """Return the error where gRPC's details say that TLS refused the server; None where they say anything else."""
    what = " ".join(str(details).split())
    host = address.rpartition(":")[0].strip("[]") or "the server"
    for sign, (problem, hint) in DISTRUST.items():
        if sign in what:
            return UntrustedServer(problem.format(host), value=what[-200:], hint=hint.format(host))
    return None


def explain_loss(details: str | None, address: str = "") -> ConnectionLost:
    """What gRPC says of it, where that is known in plainer words."""
    refused = explain_distrust(details, address)
    if refused is not None:
        return refused
    what = " ".join(str(details).split())[:200]
    if "resolving" in what or "DNS resolution failed" in what:
        return UnknownHost("the server's name cannot be resolved", value=what)
    return ConnectionLost(
        "nobody listens there" if "Connection refused" in what else "the connection was lost", value=what
    )
