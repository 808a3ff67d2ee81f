"""A client among the others: where they reach it, and how it brings them the half."""

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
    """One client's mailbox, if it listens, and its courier. `address` is what the others are told."""

    def __init__(
        self,
        keys: IdentityReloader,
        say: Callable[[str], None],
        warn: Callable[[str], None] | None = None,
        timeouts: Timeouts = Timeouts(),
    ) -> None:
        self.timeouts = timeouts
        self.keys, self.say, self.warn, self.address = keys, say, warn or say, ""
        self.courier = HalfSender(lambda: build_channel_credentials(keys.get_identity()), timeouts)
        self.mailbox: HalfReceiver | None = None

    def listen(self, address: str) -> None:
        """From here on others can bring something."""
        identity = self.keys.get_identity()
        check_has_host(identity)
        admit = build_admission_check(Revocations(identity.revocation_file, identity.ca, self.warn))
        self.mailbox = HalfReceiver(admit, timeouts=self.timeouts)
        port = self.mailbox.listen(address, build_reloading_credentials(self.keys))
        self.address = choose_address(address, identity, port)
        self.say(f"other clients reach this one at {self.address}")

    def expect(self, largest: int) -> None:
        """Nothing longer is taken."""
        if self.mailbox is not None:
            self.mailbox.largest = largest

    def come(self, lease: Lease) -> bytes | None:
        """What the client before has brought for this lease, if it has."""
        return None if self.mailbox is None else self.mailbox.take(lease.sha256)

    def bring(self, lease: Lease, half: bytes) -> Iterator[HandoverReport]:
        """Straight to the next client, where the server knows its address; and what is told the server of it."""
        if not lease.heir:
            return
        try:
            check_address(lease.heir)
            yield self.courier.bring(lease.heir, lease.fence, half)
        except (PeerUnreachable, InputError) as error:
            self.say(f"{error}; the server relays")
            yield HandoverReport(
                lease.fence, 0, b"", UNREACHED
            )  # no details: the server must not learn about this network

    def close(self) -> None:
        """Nothing comes, nothing is brought."""
        self.courier.close()
        if self.mailbox is not None:
            self.mailbox.close()


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
