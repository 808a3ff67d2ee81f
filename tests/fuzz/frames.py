"""Send hostile frames to the codec and the protocol table, and connections that are no TLS to a server with keys."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from splitrelay.chaos.corrupt_messages import send_junk
from splitrelay.errors import WorkError
from splitrelay.network import messages as msg
from splitrelay.network.codec import BadMessage, Bounds, decode, encode
from splitrelay.network.protocol import HELD, OPEN, OVER, TABLE, Conversation, End
from splitrelay.network.server import NetworkServer
from splitrelay.network.server_connection import ServerContext
from splitrelay.network.tensor_transfer import Assembly, unpack_vectors
from splitrelay.randomness import Purpose, rng
from splitrelay.security.authority import create_authority
from splitrelay.security.credential_reload import IdentityReloader, build_reloading_credentials
from splitrelay.security.identity import load_identity
from tests.fuzz.mutations import TERMS, damage_frame, list_messages

ROOT = Path(__file__).resolve().parents[2]
BOUNDS = Bounds(batch=4, h=(3,), out=2, dtype="float32", classes=10, norms=8, look=4)
MESSAGES = tuple(message for k in range(3) for message in list_messages(fence=1, k=k))
EVENTS = {event for _, end, event in TABLE if end is End.SERVER}  # what a server says
GRANTS = tuple(message for fence in (1, 2) for message in list_messages(fence) if message.event in EVENTS)


def deliver_frame(conversation: Conversation, frame: bytes, seen: Counter[str]) -> None:
    """Give the server one frame and count what it does."""
    try:
        message = decode(frame, BOUNDS)
        verdict = conversation.record_received(message)
        if isinstance(message, msg.Chunk):
            Assembly(100).add(message)
            unpack_vectors(message.data, {"x": 4}, "float32")
        seen[f"accepted: {verdict}"] += 1
    except BadMessage as error:
        seen[f"refused: {error.what}"] += 1


def answer_at_random(conversation: Conversation, draw: np.random.Generator) -> None:
    """Let the server send a message, if its state allows one."""
    before = conversation.state
    try:
        conversation.record_sent(GRANTS[int(draw.integers(len(GRANTS)))])
    except BadMessage:
        conversation.state = before


def start_conversation(draw: np.random.Generator) -> Conversation:
    """Start a conversation in a random state."""
    conversation = Conversation(End.SERVER)
    conversation.state = OPEN[int(draw.integers(len(OPEN)))]
    conversation.fence = int(conversation.state in HELD)
    return conversation


def fuzz_frames(frames: int, seed: int = 0) -> Counter[str]:
    """Send hostile frames in conversations of about twenty messages, and count what the server did with them."""
    draw, seen, conversation = rng(seed, Purpose.INSTANCES), Counter[str](), Conversation(End.SERVER)
    true = [encode(message) for message in MESSAGES]
    for _ in range(frames):
        if conversation.state in OVER or not draw.integers(20):
            conversation = start_conversation(draw)
        frame = true[int(draw.integers(len(true)))]
        deliver_frame(conversation, damage_frame(frame, draw) if draw.integers(4) else frame, seen)
        if not draw.integers(3):
            answer_at_random(conversation, draw)
    return seen


def run_server(folder: Path) -> None:
    """Run a server with keys: print its port and wait until it is killed."""
    network = NetworkServer(ServerContext(TERMS, BOUNDS, 1000, 4))
    print(
        network.start("127.0.0.1:0", build_reloading_credentials(IdentityReloader(load_identity(folder), print))),
        flush=True,
    )
    sys.stdin.read()


def send_junk_connections(calls: int, folder: Path) -> int:
    """Open connections that are no TLS to a server in another process. Return how many it accepted."""
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
    run_server(Path(sys.argv[1]))
