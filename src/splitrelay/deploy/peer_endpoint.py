"""Send halves to other clients and receive halves from them, over mutual TLS."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from splitrelay.errors import InputError
from splitrelay.network.grpc_channel import check_address
from splitrelay.network.limits import Timeouts
from splitrelay.network.messages import HandoverReport, Lease
from splitrelay.network.peer_transfer import AdmissionCheck, HalfReceiver, HalfSender, PeerUnreachable
from splitrelay.security.certificates import CLIENT
from splitrelay.security.credential_reload import IdentityReloader, build_reloading_credentials
from splitrelay.security.identity import AccessDenied, Identity, authenticate_peer, build_channel_credentials
from splitrelay.security.revocation import Revocations

UNREACHED = "the next client was not reached"


class PeerEndpoint:
    """The sender of one client, and its receiver if it listens. `address` is what the other clients are given."""

    def __init__(
        self,
        keys: IdentityReloader,
        say: Callable[[str], None],
        warn: Callable[[str], None] | None = None,
        timeouts: Timeouts = Timeouts(),
    ) -> None:
        self.timeouts = timeouts
        self.keys, self.say, self.warn, self.address = keys, say, warn or say, ""
        self.sender = HalfSender(lambda: build_channel_credentials(keys.get_identity()), timeouts)
        self.receiver: HalfReceiver | None = None

    def listen(self, address: str) -> None:
        """From here on others can bring something."""
        identity = self.keys.get_identity()
        check_has_host(identity)
        admit = build_admission_check(Revocations(identity.revocation_file, identity.ca, self.warn))
        self.receiver = HalfReceiver(admit, timeouts=self.timeouts)
        port = self.receiver.listen(address, build_reloading_credentials(self.keys))
        self.address = choose_address(address, identity, port)
        self.say(f"other clients reach this one at {self.address}")

    def expect(self, largest: int) -> None:
        """Nothing longer is taken."""
        if self.receiver is not None:
            self.receiver.largest = largest

    def come(self, lease: Lease) -> bytes | None:
        """What the client before has brought for this lease, if it has."""
        return None if self.receiver is None else self.receiver.take(lease.sha256)

    def bring(self, lease: Lease, half: bytes) -> Iterator[HandoverReport]:
        """Straight to the next client, where the server knows its address; and what is told the server of it."""
        if not lease.heir:
            return
        try:
            check_address(lease.heir)
            yield self.sender.bring(lease.heir, lease.fence, half)
        except (PeerUnreachable, InputError) as error:
            self.say(f"{error}; the server relays")
            yield HandoverReport(
                lease.fence, 0, b"", UNREACHED
            )  # no details: the server must not learn about this network

    def close(self) -> None:
        """Nothing comes, nothing is brought."""
        self.sender.close()
        if self.receiver is not None:
            self.receiver.close()


def check_has_host(identity: Identity) -> None:
    """Others look whether the certificate is for the host they call."""
    if not identity.hosts:
        hint = f"Issue it with the host under which the others reach it: keys issue {identity.name} ... --host HOST"
        raise InputError(f"the certificate of {identity.name} names no host to be reached at", hint=hint)


def choose_address(listen: str, identity: Identity, port: int) -> str:
    """The address under which TLS lets others find this client: a host that its certificate names."""
    host = listen.rpartition(":")[0].strip("[]")
    named = host if host in identity.hosts else identity.hosts[0]
    return f"[{named}]:{port}" if ":" in named else f"{named}:{port}"


def build_admission_check(revocations: Revocations) -> AdmissionCheck:
    """Only clients of the consortium bring halves, and none that is revoked."""

    def admit(context: Any) -> str | None:
        try:
            who = authenticate_peer(context.auth_context(), revocations)
        except AccessDenied as error:
            return str(error)
        return None if CLIENT in who.roles else f"{who.name} is no client"

    return admit
