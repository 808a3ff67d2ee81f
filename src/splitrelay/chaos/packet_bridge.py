"""A bad cable: every packet of a link goes through here, and some come twice, late, or not at all.

TCP sees to it that none of this reaches the stream; this is where it is shown. In the kernel `tc netem` does the same,
but not every kernel has it.
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
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from splitrelay.chaos.network_namespaces import SWITCH, Namespaces, inside
from splitrelay.randomness import Purpose, rng

EVERYTHING = 0x0003  # ETH_P_ALL
FRAME = 65536  # bytes of the longest packet
LATE = 0.01  # seconds that a packet waits while others overtake it
SIOCETHTOOL = 0x8946
OFFLOADS = (0x17, 0x1F, 0x24)  # sums, segments left to the hardware: ETHTOOL_STXCSUM, _STSO, _SGSO


@dataclass(frozen=True)
class Noise:
    """Shares of packets that are doubled, overtaken by others, or lost."""

    doubled: float = 0.0
    late: float = 0.0
    lost: float = 0.0


class PacketBridge:
    """Carries packets between two interfaces, both ways, in a thread."""

    def __init__(self, ends: tuple[socket.socket, socket.socket], noise: Noise, seed: int) -> None:
        self.ends, self.noise, self.draw = ends, noise, rng(seed, Purpose.INSTANCES, 2)
        self.seen: Counter[str] = Counter()
        self._due: list[tuple[float, int, bytes, socket.socket]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._carrying, name="cable", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Unplug it."""
        self._over.set()
        self._thread.join()
        for end in self.ends:
            end.close()

    def _carrying(self) -> None:
        one, other = self.ends
        while not self._over.is_set():
            ready, _, _ = select.select(self.ends, [], [], self._patience())
            for end in ready:
                with suppress(OSError):  # the interface is going
                    packet, address = end.recvfrom(FRAME)
                    if address[2] != socket.PACKET_OUTGOING:
                        self._take(packet, other if end is one else one)
            self._deliver()

    def _patience(self) -> float:
        return max(0.0, self._due[0][0] - time.monotonic()) if self._due else 0.1

    def _take(self, packet: bytes, to: socket.socket) -> None:
        lot, noise, now = float(self.draw.random()), self.noise, time.monotonic()
        self.seen["carried"] += 1
        if lot < noise.lost:
            self.seen["lost"] += 1
            return
        late = lot < noise.lost + noise.late
        self._lay(now + LATE * late, packet, to)
        self.seen["late"] += late
        if float(self.draw.random()) < noise.doubled:
            self.seen["doubled"] += 1
            self._lay(now, packet, to)

    def _lay(self, when: float, packet: bytes, to: socket.socket) -> None:
        self.seen["laid"] += 1
        heapq.heappush(self._due, (when, self.seen["laid"], packet, to))

    def _deliver(self) -> None:
        while self._due and self._due[0][0] <= time.monotonic():
            _, _, packet, to = heapq.heappop(self._due)
            with suppress(OSError):  # no room in the queue: a lost packet more
                to.send(packet)


def cables(network: Namespaces, noise: Noise) -> list[PacketBridge]:
    """A cable for the link of every client."""
    made = []
    for m in network.clients:
        who = str(m)
        near, far = network.ends(who)
        inside(network.name(who), lambda: honest("eth0"))
        inside(network.name(SWITCH), lambda who=who: honest(f"port{who}"))  # type: ignore[misc]
        ends = inside(network.name(SWITCH), _pair(near, far))
        made.append(PacketBridge(ends, noise, m))
    return made


def _pair(near: str, far: str) -> Callable[[], tuple[socket.socket, socket.socket]]:
    return lambda: (_plugged(near), _plugged(far))


def _plugged(interface: str) -> socket.socket:
    end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(EVERYTHING))
    end.bind((interface, EVERYTHING))
    return end


def honest(interface: str) -> None:
    """The interface sends packets as they are on a wire, whole and with their sums: nobody else adds them here."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
        for command in OFFLOADS:
            value = array.array("B", struct.pack("II", command, 0))
            request = struct.pack("16sP", interface.encode(), value.buffer_info()[0])
            fcntl.ioctl(line.fileno(), SIOCETHTOOL, request.ljust(40, b"\0"))
