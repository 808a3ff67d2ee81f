"""Separate hosts on one machine: one network namespace for the server and for each client, connected by a bridge.

This needs Linux, root and the program `ip`. The bridge has its own namespace, so the machine's own network does not
change. Namespaces are named splitrelay-PID-HOST. After a kill -9 of a rehearsal, the next rehearsal removes its
namespaces.

With noise, each client is connected to the bridge by a `PacketBridge` instead of a direct link:

    client: eth0 -- nearM  [PacketBridge]  farM -- portM: bridge

Forward network packets between two interfaces and duplicate, delay or drop some of them.

TCP must repair all of this; a rehearsal shows that it does. The kernel's `tc netem` does the same, but not every kernel
has it.
"""

from __future__ import annotations

import array
import ctypes
import fcntl
import heapq
import os
import select
import shutil
import socket
import struct
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import TypeVar

from splitrelay.errors import InputError, WorkError
from splitrelay.randomness import Purpose, rng

ETH_P_ALL = 0x0003
MAX_PACKET = 65536  # bytes
REORDER_DELAY = 0.01  # seconds that a packet waits while others overtake it
SIOCETHTOOL = 0x8946
OFFLOADS = (0x17, 0x1F, 0x24)  # checksums and segmentation in hardware: ETHTOOL_STXCSUM, _STSO, _SGSO
COUNTERS = ("carried", "duplicated", "reordered", "dropped")


@dataclass(frozen=True)
class Noise:
    """Probabilities that a packet is duplicated, reordered or dropped."""

    duplicate: float = 0.0
    reorder: float = 0.0
    drop: float = 0.0


class PacketBridge:
    """Forwards packets between two packet sockets in both directions, in a background thread.

    Attributes:
        counts: Number of packets for each of COUNTERS.
    """

    def __init__(self, ends: tuple[socket.socket, socket.socket], noise: Noise, seed: int) -> None:
        self.ends, self.noise, self.rng = ends, noise, rng(seed, Purpose.INSTANCES, 2)
        self.counts: Counter[str] = Counter()
        self._queue: list[tuple[float, int, bytes, socket.socket]] = []  # time, number, packet, destination
        self._queued = 0
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._forward_packets, name="packet bridge", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop forwarding and close both sockets."""
        self._closed.set()
        self._thread.join()
        for end in self.ends:
            end.close()

    def _forward_packets(self) -> None:
        one, other = self.ends
        while not self._closed.is_set():
            timeout = max(0.0, self._queue[0][0] - time.monotonic()) if self._queue else 0.1
            ready, _, _ = select.select(self.ends, [], [], timeout)
            for end in ready:
                with suppress(OSError):  # the interface is being removed
                    packet, address = end.recvfrom(MAX_PACKET)
                    if address[2] != socket.PACKET_OUTGOING:
                        self._handle_packet(packet, other if end is one else one)
            self._send_due_packets()

    def _handle_packet(self, packet: bytes, destination: socket.socket) -> None:
        number, noise, now = float(self.rng.random()), self.noise, time.monotonic()
        self.counts["carried"] += 1
        if number < noise.drop:
            self.counts["dropped"] += 1
            return
        reorder = number < noise.drop + noise.reorder
        self.counts["reordered"] += reorder
        self._enqueue(now + REORDER_DELAY * reorder, packet, destination)
        if float(self.rng.random()) < noise.duplicate:
            self.counts["duplicated"] += 1
            self._enqueue(now, packet, destination)

    def _enqueue(self, when: float, packet: bytes, destination: socket.socket) -> None:
        self._queued += 1  # keeps the order of packets with equal times
        heapq.heappush(self._queue, (when, self._queued, packet, destination))

    def _send_due_packets(self) -> None:
        while self._queue and self._queue[0][0] <= time.monotonic():
            _, _, packet, destination = heapq.heappop(self._queue)
            with suppress(OSError):  # the kernel's queue is full: one more dropped packet
                destination.send(packet)


def open_packet_socket(interface: str) -> socket.socket:
    """Open a raw socket for all packets of an interface of the current network namespace."""
    packets = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    packets.bind((interface, ETH_P_ALL))
    return packets


def disable_offloads(interface: str) -> None:
    """Let the interface send complete packets with checksums, because no hardware adds them here."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for command in OFFLOADS:
            value = array.array("B", struct.pack("II", command, 0))
            request = struct.pack("16sP", interface.encode(), value.buffer_info()[0])
            fcntl.ioctl(control.fileno(), SIOCETHTOOL, request.ljust(40, b"\0"))


T = TypeVar("T")
PREFIX = "splitrelay"
SUBNET = IPv4Network("198.18.0.0/15")  # reserved for benchmarks (RFC 2544)
FOLDER = Path("/run/netns")
CLONE_NEWNET = 0x40000000
NO_NOISE = Noise()
SWITCH, SERVER = "switch", "server"


class NamespaceHosts:
    """The hosts of one rehearsal in network namespaces.

    Args:
        noise: How many packets of the clients are duplicated, reordered or dropped.
    """

    def __init__(self, noise: Noise = NO_NOISE) -> None:
        self.noise = noise
        self.server_host = str(get_address(SERVER))
        self.bridges: list[PacketBridge] = []

    def check_available(self) -> None:
        """Raise an InputError if namespaces cannot be created."""
        check_namespaces_available()

    def get_client_host(self, m: int) -> str:
        """Return the address of client m."""
        return str(get_address(str(m)))

    def get_prefix(self, name: str) -> list[str]:
        """Return the command that runs a program in the namespace of a host."""
        return ["ip", "netns", "exec", get_namespace(name)]

    def open(self, clients: Sequence[int]) -> str:
        """Create namespaces, bridge and links."""
        check_namespaces_available()
        remove_stale_namespaces()
        hosts = [SERVER, *map(str, clients)]
        for host in (SWITCH, *hosts):
            run_ip("netns", "add", get_namespace(host))
            run_ip("-n", get_namespace(host), "link", "set", "lo", "up")
        _configure_switch("link", "add", "bridge", "type", "bridge")
        _configure_switch("link", "set", "bridge", "up")
        for host in hosts:
            self._connect(host, noisy=host != SERVER and self.noise != NO_NOISE)
        return f"{len(hosts)} hosts: the server is {self.server_host}, the clients have the addresses after it"

    def close(self) -> str:
        """Remove the namespaces; their links and the bridge disappear with them."""
        for bridge in self.bridges:
            bridge.close()
        for name in list_namespaces(get_namespace("")):
            delete_namespace(name)
        counts = ", ".join(f"{number} {name}" for name, number in self.count_packets().items())
        return f"packets: {counts}" if self.bridges else ""

    def count_packets(self) -> dict[str, int]:
        """Return the number of packets that were carried, duplicated, reordered and dropped."""
        return {name: sum(bridge.counts[name] for bridge in self.bridges) for name in COUNTERS}

    def _connect(self, host: str, noisy: bool) -> None:
        """Connect a host to the bridge."""
        home, near, far, port = get_namespace(host), f"near{host}", f"far{host}", f"port{host}"
        _configure_switch("link", "add", near, "type", "veth", "peer", "name", "eth0", "netns", home)
        run_ip("-n", home, "address", "add", f"{get_address(host)}/{SUBNET.prefixlen}", "dev", "eth0")
        run_ip("-n", home, "link", "set", "eth0", "up")
        _configure_switch("link", "set", near, "up")
        if not noisy:
            _configure_switch("link", "set", near, "master", "bridge")
            return
        _configure_switch("link", "add", far, "type", "veth", "peer", "name", port)
        _configure_switch("link", "set", port, "master", "bridge")
        for end in (far, port):
            _configure_switch("link", "set", end, "up")
        run_in_namespace(home, lambda: disable_offloads("eth0"))

        def open_ends() -> tuple[socket.socket, socket.socket]:
            disable_offloads(port)
            return open_packet_socket(near), open_packet_socket(far)

        ends = run_in_namespace(get_namespace(SWITCH), open_ends)
        self.bridges.append(PacketBridge(ends, self.noise, int(host)))


def get_address(host: str) -> IPv4Address:
    """Return the address of a host: the first of the subnet for the server, then one for each client."""
    return SUBNET[1] if host == SERVER else SUBNET[2 + int(host)]


def get_namespace(host: str) -> str:
    """Return the name of this process's namespace for the server, a client or the switch."""
    return f"{PREFIX}-{os.getpid()}-{host}"


def check_namespaces_available() -> None:
    """Raise an InputError if this user cannot create network namespaces."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        hint = "Run it as root where iproute2 is installed, or leave out --namespaces."
        raise InputError("--namespaces needs root and the program ip", hint=hint)


def remove_stale_namespaces() -> None:
    """Remove the namespaces of rehearsals whose process does not exist any more."""
    for name in list_namespaces(f"{PREFIX}-"):
        owner = name.split("-")[1]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists():
            delete_namespace(name)


def list_namespaces(prefix: str) -> list[str]:
    """Return the names of all namespaces that start with a prefix."""
    return sorted(path.name for path in FOLDER.glob(f"{prefix}*")) if FOLDER.exists() else []


def delete_namespace(name: str) -> None:
    """Delete a namespace if it exists."""
    with suppress(WorkError):
        run_ip("netns", "delete", name)


def run_ip(*arguments: str) -> None:
    """Run a command of iproute2; raise a WorkError if it fails."""
    result = subprocess.run(["ip", *arguments], capture_output=True, text=True)
    if result.returncode != 0:
        raise WorkError(f"the command ip {' '.join(arguments)} failed", value=" ".join(result.stderr.split()))


def _configure_switch(*arguments: str) -> None:
    run_ip("-n", get_namespace(SWITCH), *arguments)


def run_in_namespace(name: str, action: Callable[[], T]) -> T:
    """Call `action` in a thread that has entered a network namespace; sockets that it opens belong to it.

    Raises:
        WorkError: The namespace cannot be entered, or `action` raised an OSError.
    """
    results: list[T] = []
    errors: list[OSError] = []

    def enter_and_run() -> None:
        try:
            libc = ctypes.CDLL(None, use_errno=True)
            with (FOLDER / name).open() as namespace:
                if libc.setns(namespace.fileno(), CLONE_NEWNET) != 0:
                    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
            results.append(action())
        except OSError as error:
            errors.append(error)

    thread = threading.Thread(target=enter_and_run)
    thread.start()
    thread.join()
    if errors:
        raise WorkError(f"cannot work in the network namespace {name}", value=errors[0].strerror)
    return results[0]
