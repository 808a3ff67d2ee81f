"""Transfer sealed halves directly from one client to the next, where the two can reach each other.

The next client listens at its own address, over mutual TLS, for other clients of the consortium. One call is one half:
`splitrelay.Peer/Hand` takes frames, first *handed* with length and SHA-256, then the chunks, and answers with nothing.

Send halves to other clients and receive halves from them, over mutual TLS.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Lock, Timer
from typing import Any

import grpc

from splitrelay.errors import InputError, WorkError
from splitrelay.network import limits, tensor_transfer
from splitrelay.network.codec import BadMessage, decode, encode
from splitrelay.network.grpc_channel import PLAIN, check_address
from splitrelay.network.limits import Limits, Timeouts
from splitrelay.network.messages import Chunk, HandoverReport, Lease
from splitrelay.security.certificates import CLIENT
from splitrelay.security.credential_reload import IdentityReloader, build_reloading_credentials
from splitrelay.security.encryption import TamperedHalf, read_label
from splitrelay.security.identity import AccessDenied, Identity, authenticate_peer, build_channel_credentials
from splitrelay.security.revocation import Revocations

METHOD = "/splitrelay.Peer/Hand"
OPTIONS = (
    *PLAIN,
    ("grpc.max_receive_message_length", 2 * limits.CHUNK),
    ("grpc.max_concurrent_streams", 2),
    ("grpc.max_allowed_incoming_connections", Limits.peers),
    ("grpc.so_reuseport", 0),
)
MOST_HALVES = 2  # halves that wait for their lease
MOST_CALLS = 4  # calls
AdmissionCheck = Callable[[Any], str | None]  # a reason to refuse a caller, or None


class PeerUnreachable(WorkError):
    """The next client cannot be reached, or does not take the half: the server relays it."""


class HalfReceiver:
    """Sealed halves that other clients have brought, by their SHA-256, until the server's lease asks for one."""

    def __init__(self, admit: AdmissionCheck, largest: int = limits.HALF, timeouts: Timeouts = Timeouts()) -> None:
        self.admit, self.largest, self.timeouts = admit, largest, timeouts
        self._halves: OrderedDict[bytes, bytes] = OrderedDict()
        self._lock = Lock()
        self._server: Any = None

    def listen(self, address: str, credentials: grpc.ServerCredentials) -> int:
        """Begin to listen, and say on which port."""
        check_address(address, listen=True)
        options = (
            *OPTIONS,
            ("grpc.server_handshake_timeout_ms", int(1000 * self.timeouts.handshake)),
            ("grpc.max_connection_idle_ms", int(1000 * self.timeouts.idle)),
        )
        server = grpc.server(ThreadPoolExecutor(MOST_CALLS), options=options, maximum_concurrent_rpcs=MOST_CALLS)
        method = grpc.stream_unary_rpc_method_handler(self._receive_half)
        service, _, name = METHOD[1:].partition("/")
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {name: method}),))
        try:
            port = server.add_secure_port(address, credentials)
        except RuntimeError:
            hint = "Choose another --listen, or stop the program that uses it."
            raise InputError(f"cannot listen on {address}", hint=hint) from None
        server.start()
        self._server = server
        return int(port)

    def take(self, digest: bytes) -> bytes | None:
        """The half with this SHA-256, if it has come; it is gone then."""
        with self._lock:
            return self._halves.pop(digest, None)

    def close(self) -> None:
        """Nobody is heard any more."""
        if self._server is not None:
            self._server.stop(None)

    def _receive_half(self, frames: Iterator[bytes], context: Any) -> bytes:
        why = self.admit(context)
        if why is not None:
            context.abort(grpc.StatusCode.PERMISSION_DENIED, why)
        ends = [self._start_timer(self.timeouts.peer, context)]  # a slow peer occupies one of a few places
        try:
            first = decode(next(frames, b""))
            if not isinstance(first, HandoverReport) or first.bytes > self.largest:
                raise BadMessage("a peer hands over one half", value=first.event, limit=f"<= {self.largest} bytes")
            ends.append(self._start_timer(self.timeouts.compute_peer_time(first.bytes), context))
            ends[0].cancel()
            digest, half = self._read_half(first, frames)
        except (BadMessage, TamperedHalf) as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        finally:
            for end in ends:
                end.cancel()
        with self._lock:
            self._halves[digest] = half
            while len(self._halves) > MOST_HALVES:
                self._halves.popitem(last=False)
        return b""

    def _start_timer(self, seconds: float, context: Any) -> Timer:
        end = Timer(seconds, context.cancel)
        end.daemon = True
        end.start()
        return end

    def _read_half(self, first: HandoverReport, frames: Iterator[bytes]) -> tuple[bytes, bytes]:
        assembly = tensor_transfer.Assembly(first.bytes)
        for frame in frames:
            chunk = decode(frame)
            if not isinstance(chunk, Chunk):
                raise BadMessage("a peer hands over one half", value=chunk.event, limit="chunks")
            assembly.add(chunk)
        half = assembly.blob(first.bytes, first.sha256)
        read_label(half)  # whether it can be opened is seen when its lease comes
        return bytes(first.sha256), half


class HalfSender:
    """Brings sealed halves to other clients; ways that were found are kept."""

    def __init__(self, credentials: Callable[[], grpc.ChannelCredentials], timeouts: Timeouts = Timeouts()) -> None:
        self.credentials, self.timeouts = credentials, timeouts
        self._channels: dict[str, grpc.Channel] = {}
        self._failed: dict[str, float] = {}

    def send(self, address: str, fence: int, half: bytes) -> HandoverReport:
        """The next client has the half when this returns; else Unreached."""
        again = self.timeouts.peer_retry
        since = time.monotonic() - self._failed.get(address, -again)
        if since < again:
            raise PeerUnreachable(f"{address} could not be reached {since:.0f} seconds ago")
        report = HandoverReport(fence, len(half), tensor_transfer.compute_sha256(half))
        frames = (encode(message) for message in (report, *tensor_transfer.split_into_chunks(fence, half)))
        try:
            self._get_channel(address).stream_unary(METHOD)(frames, timeout=self.timeouts.compute_peer_time(len(half)))
        except grpc.RpcError as error:
            self._failed[address] = time.monotonic()
            self._channels.pop(address).close()
            what = error.details() if isinstance(error, grpc.Call) else str(error)
            raise PeerUnreachable(f"{address} cannot be reached", value=" ".join(str(what).split())[:200]) from None
        return report

    def close(self) -> None:
        """No half is on its way."""
        for channel in self._channels.values():
            channel.close()
        self._channels = {}

    def _get_channel(self, address: str) -> grpc.Channel:
        if address not in self._channels:
            options = (
                *PLAIN,
                ("grpc.max_receive_message_length", limits.CONTROL),
                ("grpc.max_send_message_length", 2 * limits.CHUNK),
                ("grpc.use_local_subchannel_pool", 1),
            )
            self._channels[address] = grpc.secure_channel(address, self.credentials(), options)
        return self._channels[address]


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
        """Start to accept halves from other clients at this address."""
        identity = self.keys.get_identity()
        check_has_host(identity)
        admit = build_admission_check(Revocations(identity.revocation_file, identity.ca, self.warn))
        self.receiver = HalfReceiver(admit, largest=0, timeouts=self.timeouts)  # until the spec is known
        port = self.receiver.listen(address, build_reloading_credentials(self.keys))
        self.address = choose_address(address, identity, port)
        self.say(f"other clients reach this one at {self.address}")

    def expect(self, largest: int) -> None:
        """Nothing longer is taken."""
        if self.receiver is not None:
            self.receiver.largest = largest

    def take_half(self, lease: Lease) -> bytes | None:
        """What the client before has brought for this lease, if it has."""
        return None if self.receiver is None else self.receiver.take(lease.sha256)

    def hand_over(self, lease: Lease, half: bytes) -> Iterator[HandoverReport]:
        """Straight to the next client, where the server knows its address; and what is told the server of it."""
        if not lease.heir:
            return
        try:
            check_address(lease.heir)
            yield self.sender.send(lease.heir, lease.fence, half)
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
