"""Limits and timeouts of the network. A peer that exceeds a limit gets an error, and the server serves the others.

The constants are part of the message format: both ends check them. `Limits` and `Timeouts` are values. Server and
client receive them when they are constructed, so that a test can pass small ones.
"""

from __future__ import annotations

from dataclasses import dataclass

MESSAGE = 64 * 2**20  # bytes of one message: a batch of smashed data must fit
CHUNK = 2**20  # bytes of a half in one message, well under the 4 MB that gRPC peers allow by default
LEAST = 2**9  # bytes of a chunk that another one follows: short ones cost more than they carry
PIECE = 2**18  # bytes of a half that we send in one message: one within Timeouts.silence is 13 kB/s
HALF = 2**31  # bytes of one half, or of a whole model
CONTROL = 256 * 2**10  # bytes of one control message: a spec and the names of its classes must fit
REPORT = 8 * 2**20  # characters of a status: one of 10,000 clients takes 3 MB
BATCH = 2**20  # samples of one step
AXES = 6  # of smashed data, the samples included
NORMS = 2**16  # squared norms on one reply: one for each tensor of the server's half
STEPS = 10**9  # K of a visit
SAMPLES = 10**9  # n_m of a client
CLASSES = 2**20
METRICS = 100  # of one evaluation
PIXELS = 2**28  # of one image, all channels
LEVEL = 10**6  # mean of a channel, at most; its standard deviation lies between 1/LEVEL and LEVEL
PADDING = 1024  # pixels around an image, for random crops
CLIENTS = 10_000  # of a run, each with one connection
TEXT = 1000  # characters of a reason or a name
SECONDS = 10**10  # that a client may report to have spent
MEMORY = 2**50  # bytes that a client may report to have used
SHORTEST_HEARTBEAT = 0.05  # seconds: a server may not ask its clients to send more often
# A visit without clip may move its weights by MOVE_FACTOR times (their norm + 1). Visits that learn stay below 4 times
# (digits, K=20, C=1, eta up to 0.3, SSL and SCAFFOLD); those that reach 1000 have blown up (eta >= 1). So it keeps out
# what overflows, and not what poisons: clip gives a bound that is nearly exact.
MOVE_FACTOR = 1000.0
LARGEST_WEIGHT = 1e6  # or twice the largest one before: activations of float32 stay numbers for several layers


@dataclass(frozen=True)
class Limits:
    """How much one server or client accepts at once."""

    handshakes: int = 64  # connections whose handshake is not complete
    handshakes_per_certificate: int = 4
    connections: int = 16_000  # of any kind, TLS handshakes included; fewer where fewer files may be open
    spare_files: int = 100  # open files that connections leave to the server itself
    peers: int = 200  # connections to a client that listens for others
    streams: int = 8  # on one connection
    collectors: int = 4  # that download the model
    connections_without_progress: int = 20  # one after another in one visit
    idle_messages: int = 500  # of one connection in a row without progress, such as heartbeats and repeated steps
    idle_rate: float = 50.0  # of them in a second, for longer than that
    unanswered: int = 16  # messages of one connection that the server has not answered yet
    batch: int = BATCH  # samples of one step on all samples of a client
    piece: int = PIECE  # bytes of a half that are sent in one message


@dataclass(frozen=True)
class Timeouts:
    """All waiting times in seconds."""

    handshake: float = 30.0  # for TLS, and again from the first message to the welcome
    idle: float = 60.0  # that a gRPC connection may stay without a call
    rpc: float = 600.0  # for a status or collect request with its complete answer
    standstill: float = 0.1  # for which a server that computes does not run its event loop
    heartbeat: float = 5.0  # without another message after which a peer sends a heartbeat
    silence: float = 20.0  # without a message after which a connection counts as lost
    step: float = 300.0  # that one local step may take
    grace: float = 10.0  # that a client which is stopped waits for the end of its visit
    lease: float = 60.0  # that a client may be away before its visit is cancelled
    first_retry: float = 0.1  # between two attempts to connect: the first pause, and
    longest_retry: float = 15.0  # the longest
    tick: float = 1.0  # between two checks of a client's timeouts
    server_tick: float = 0.5  # between two checks of the server's timeouts
    peer: float = 10.0  # to reach another client, and one more for each MiB
    peer_retry: float = 60.0  # for which a client that was not reached is not tried again

    def compute_pause(self, tries: int) -> float:
        """Return the seconds to wait before something is tried once more; each try doubles them."""
        return float(min(self.first_retry * 2.0 ** min(tries, 30), self.longest_retry))

    def compute_peer_time(self, length: int) -> float:
        """Return the seconds that a half of so many bytes may take from client to client, at both ends."""
        return self.peer + length / 2**20
