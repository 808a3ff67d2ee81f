"""Forward network packets between two interfaces and duplicate, delay or drop some of them.

TCP must repair all of this; a rehearsal shows that it does. The kernel's `tc netem` does the same, but not every kernel
has it.
"""

from __future__ import annotations

import array
import fcntl
import heapq
import select
import socket
import struct
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass

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
