"""Send hostile frames to the codec and the protocol table, and connections that are no TLS to a server with keys."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from splitrelay.chaos.unauthenticated_clients import send_junk
from splitrelay.errors import WorkError
from splitrelay.network import messages as say
from splitrelay.network.codec import BadMessage, Bounds, decode, encode
from splitrelay.network.connection_handler import House
from splitrelay.network.protocol import HELD, OPEN, OVER, TABLE, Conversation, End
from splitrelay.network.server import Hub
from splitrelay.network.tensor_transfer import Assembly, unpacked
from splitrelay.randomness import Purpose, rng
from splitrelay.security.authority import create_authority
from splitrelay.security.credential_reload import IdentityReloader, build_reloading_credentials
from splitrelay.security.identity import load_identity
from tests.fuzz.mutations import TERMS, damaged, vocabulary

ROOT = Path(__file__).resolve().parents[2]
BOUNDS = Bounds(batch=4, h=(3,), out=2, dtype="float32", classes=10, norms=8, look=4)
WORDS = tuple(word for k in range(3) for word in vocabulary(fence=1, k=k))
EVENTS = {event for _, end, event in TABLE if end is End.SERVER}  # what a server says
GRANTS = tuple(word for fence in (1, 2) for word in vocabulary(fence) if word.event in EVENTS)


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


def stand(folder: Path) -> None:
    """A server with keys that says its port and waits to be killed."""
    hub = Hub(House(TERMS, BOUNDS, 1000, 4))
    print(
        hub.start("127.0.0.1:0", build_reloading_credentials(IdentityReloader(load_identity(folder), print))),
        flush=True,
    )
    sys.stdin.read()


def junk(calls: int, folder: Path) -> int:
    """So many times some connections that are no TLS, to a server in a process of its own; how many were taken."""
    create_authority(folder / "authority", "fuzzing").issue_server("server", ["127.0.0.1"])
    words = [sys.executable, "-m", "tests.fuzz.frames", str(folder / "server")]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(words, cwd=ROOT, **pipes) as server:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        taken = sum(send_junk("127.0.0.1", port, seed) for seed in range(calls))
        code = server.poll()
        server.kill()
    if code is not None:
        raise WorkError("junk brought the server down", value=f"code {code}")
    return taken


if __name__ == "__main__":
    stand(Path(sys.argv[1]))
