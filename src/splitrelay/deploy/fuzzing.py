"""Hostile frames: `python -m splitrelay.deploy.fuzzing FRAMES CONVERSATIONS`.

FRAMES go to codec and table, CONVERSATIONS to a real server over a socket, and as many connections that are no TLS to
one with keys. True frames, damaged in every way: bytes
flipped, cut, added, header fields rewritten under a fitting checksum, and said in any state. Nothing but BadMessage may
come of it, no conversation may hang, and memory must stay flat.
"""

from __future__ import annotations

import resource
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from queue import Empty
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from grpc import RpcError

from splitrelay.deploy.strangers import CALLS, pester
from splitrelay.errors import WorkError
from splitrelay.randomness import Purpose, rng
from splitrelay.wire import messages as say
from splitrelay.wire.authority import create_authority
from splitrelay.wire.client import channel
from splitrelay.wire.control import BadMessage
from splitrelay.wire.frames import CHECKSUM, COVERED, HEADER, Bounds, checksum, decode, encode
from splitrelay.wire.halves import Assembly, packed, unpacked
from splitrelay.wire.identity import load_identity
from splitrelay.wire.messages import Message
from splitrelay.wire.protocol import HELD, OPEN, OVER, Conversation, End
from splitrelay.wire.renewal import Keys, renewed_credentials
from splitrelay.wire.server import SERVICE, House, Hub

H = np.ones((2, 3), np.float32)
LABELS = np.zeros(2, np.int32)
STAND = "stand"
BOUNDS = Bounds(batch=4, h=(3,), out=2, dtype="float32", classes=10, norms=8, look=4)
FIELDS = (
    (4, "<B"), (5, "<B"), (6, "<B"), (7, "<B"), (8, "<Q"), (16, "<I"), (20, "<I"), (24, "<I"), (28, "<I"), (40, "<Q"),
)  # fmt: skip
WORDS: tuple[Message, ...] = (
    say.Hello(1, 0, "me"),
    say.Accept("h", "fast", "cpu", 5),
    say.Ready(1),
    say.Step(1, 0, H, LABELS, 0.5),
    say.Step(1, 1, H, LABELS, 0.5),
    say.Finish(1, 2, 0.5),
    say.Chunk(1, 0, packed(x=np.ones(4, np.float32))),
    say.Deposit(1, 80, b"x" * 32, (0.5,)),
    say.Fail(1, "no"),
    say.Predict(1, 0, H),
    say.Score(1, 0.5, 0.5, (0.5,)),
    say.Heartbeat(1),
    say.Leave("bye"),
)
TERMS = say.Terms("", "h", "fast", "cpu", (1, 2, 2), ("a",), (0.0,), (1.0,), 255, heartbeat=1.0)
GRANTS: tuple[Message, ...] = (
    TERMS,
    say.Welcome(),
    say.Lease(1, 1, 0, 0, 0, 2, 0.1),
    say.Reply(1, 0, H, (), 0.5),
    say.Commit(1),
    say.Cancel(1),
    say.Look(2, 0, 8, b"x" * 32),
)


def damaged(frame: bytes, draw: np.random.Generator) -> bytes:
    """The frame, or what is left of it."""
    body, way = bytearray(frame), int(draw.integers(6))
    if way == 0:
        body[int(draw.integers(len(body)))] ^= 1 << int(draw.integers(8))
    elif way == 1:
        body = body[: int(draw.integers(len(body)))]
    elif way == 2:
        body += draw.bytes(int(draw.integers(1, 50)))
    elif way == 3:
        offset, form = FIELDS[int(draw.integers(len(FIELDS)))]
        value = int(draw.integers(2 ** (8 * struct.calcsize(form)) - 1, dtype=np.uint64)) >> int(draw.integers(60))
        struct.pack_into(form, body, offset, value % 2 ** (8 * struct.calcsize(form)))
    elif way == 4 and len(body) > HEADER.size:
        body[int(draw.integers(HEADER.size, len(body)))] = int(draw.integers(256))
    if len(body) >= HEADER.size and draw.integers(2):  # under a checksum that fits
        CHECKSUM.pack_into(body, COVERED, checksum(bytes(body[:COVERED]), bytes(body[HEADER.size :])))
    return bytes(body)


def said(talk: Conversation, frame: bytes, seen: Counter[str]) -> None:
    """One frame at the server's door."""
    try:
        message = decode(frame, BOUNDS)
        verdict = talk.hear(message)
        if isinstance(message, say.Chunk):
            Assembly(100).add(message)
            unpacked(message.data, {"x": 4}, "float32")
        seen[f"heard {verdict}"] += 1
    except BadMessage as error:
        seen[f"refused: {error.what}"] += 1


def answered(talk: Conversation, draw: np.random.Generator) -> None:
    """The server goes on as it would, now and then."""
    before = talk.state
    try:
        talk.say(GRANTS[int(draw.integers(len(GRANTS)))])
    except BadMessage:
        talk.state = before


def begun(draw: np.random.Generator) -> Conversation:
    """A conversation somewhere in its middle."""
    talk = Conversation(End.SERVER)
    talk.state = OPEN[int(draw.integers(len(OPEN)))]
    talk.fence = int(talk.state in HELD)
    return talk


def fuzz(frames: int, seed: int = 0) -> Counter[str]:
    """So many hostile frames in conversations of some twenty words; what became of them."""
    draw, seen, talk = rng(seed, Purpose.INSTANCES), Counter[str](), Conversation(End.SERVER)
    true = [encode(word) for word in WORDS]
    for _ in range(frames):
        if talk.state in OVER or not draw.integers(20):
            talk = begun(draw)
        frame = true[int(draw.integers(len(true)))]
        said(talk, damaged(frame, draw) if draw.integers(4) else frame, seen)
        if not draw.integers(3):
            answered(talk, draw)
    return seen


def converse(conversations: int, pieces: int = 1, seed: int = 0) -> Iterator[Counter[str]]:
    """So many hostile conversations, in pieces, all with one real server, one stream each; how those of each ended."""
    house = House(TERMS, BOUNDS, 1000, 4)
    hub, draw = Hub(house), rng(seed, Purpose.INSTANCES, 1)
    line = channel(f"127.0.0.1:{hub.start('127.0.0.1:0')}", None)
    true = [encode(word) for word in WORDS]
    join: Any = line.stream_stream(f"/{SERVICE}/Join")
    try:
        for _ in range(pieces):
            yield Counter(_ending(join, true, draw) for _ in range(conversations // pieces))
            with suppress(Empty):
                while hub.inbox.get(0.0):  # as a server's training thread does
                    pass
    finally:
        line.close()
        hub.close("enough", again=False)


def _ending(join: Any, true: Sequence[bytes], draw: np.random.Generator) -> str:
    """One conversation: how it ended."""
    frames = [*true[: int(draw.integers(3))]]
    frames += [damaged(true[int(draw.integers(len(true)))], draw) for _ in range(int(draw.integers(1, 6)))]
    try:
        words = [decode(answer).event for answer in join(iter(frames), timeout=10)]
    except RpcError as error:
        return f"ended: {error.code()}"
    return "ended: " + (words[-1] if words else "without a word")


def stand(folder: Path) -> None:
    """A server with keys that says its port and waits to be killed."""
    hub = Hub(House(TERMS, BOUNDS, 1000, 4))
    print(hub.start("127.0.0.1:0", renewed_credentials(Keys(load_identity(folder), print))), flush=True)
    sys.stdin.read()


def junk(calls: int, folder: Path) -> int:
    """So many times some connections that are no TLS, to a server in a process of its own; how many were taken."""
    create_authority(folder / "authority", "fuzzing").issue_server("server", ["127.0.0.1"])
    words = [sys.executable, "-m", "splitrelay.deploy.fuzzing", STAND, str(folder / "server")]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(words, **pipes) as server:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        taken = sum(pester("127.0.0.1", port, seed) for seed in range(calls))
        code = server.poll()
        server.kill()
    if code is not None:
        raise WorkError("junk brought the server down", value=f"code {code}")
    return taken


def main(words: list[str]) -> None:
    """In pieces, so that growing memory would show."""
    if words[:1] == [STAND]:
        stand(Path(words[1]))
        return
    frames, conversations = (int(word) for word in (words or ["10000", "100"]))
    began, seen, pieces = time.perf_counter(), Counter[str](), 10
    for piece in range(pieces):
        seen += fuzz(frames // pieces, piece)
        print(f"{frames // pieces} frames, {time.perf_counter() - began:.0f} s, peak memory {_peak()} kB")
    for what, number in seen.most_common():
        print(f"{number:>9}  {what}")
    for ends in converse(conversations, pieces):
        took = time.perf_counter() - began
        print(f"{conversations // pieces} conversations, {took:.0f} s, {_peak()} kB: {dict(ends)}")
    with TemporaryDirectory() as folder:
        print(f"{junk(conversations // CALLS, Path(folder))} connections of junk, {_peak()} kB")


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


if __name__ == "__main__":
    main(sys.argv[1:])
