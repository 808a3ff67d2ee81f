"""Hostile frames: `python -m splitrelay.deploy.fuzz_main FRAMES CONVERSATIONS`.

FRAMES go to codec and table, CONVERSATIONS to real servers that train over a socket (see siege), and as many
connections that are no TLS to one with keys. True frames, damaged in every way: bytes flipped, cut, added, header
fields rewritten under a fitting checksum, and said in any state. Nothing but BadMessage may come of it, no conversation
may crash or hang a server, memory must stay flat, and every state of the table must have been reached at the server:
else the exit code is 1, and the last lines say why.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from splitrelay.chaos.unauthenticated_clients import CALLS, pester
from splitrelay.deploy.fuzz_campaign import Tale, siege
from splitrelay.deploy.fuzz_mutations import TERMS, damaged, vocabulary
from splitrelay.errors import WorkError
from splitrelay.network import messages as say
from splitrelay.network.codec import Bounds, decode, encode
from splitrelay.network.control import BadMessage
from splitrelay.network.protocol import HELD, OPEN, OVER, TABLE, Conversation, End, State
from splitrelay.network.server import House, Hub
from splitrelay.network.tensor_transfer import Assembly, unpacked
from splitrelay.randomness import Purpose, rng
from splitrelay.security.authority import create_authority
from splitrelay.security.credential_reload import Keys, renewed_credentials
from splitrelay.security.identity import load_identity

STAND = "stand"
BOUNDS = Bounds(batch=4, h=(3,), out=2, dtype="float32", classes=10, norms=8, look=4)
WORDS = tuple(word for k in range(3) for word in vocabulary(fence=1, k=k))
EVENTS = {event for _, end, event in TABLE if end is End.SERVER}  # what a server says
GRANTS = tuple(word for fence in (1, 2) for word in vocabulary(fence) if word.event in EVENTS)
MANY = 1000  # conversations in which every state must be reached
PIECE = 400  # conversations after which honest clients come, and memory is looked at
GROWTH = 1.5, 1.1  # times what it was after the first piece, and in the middle, that memory may grow to


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
    print(hub.start("127.0.0.1:0", renewed_credentials(Keys(load_identity(folder), print))), flush=True)
    sys.stdin.read()


def junk(calls: int, folder: Path) -> int:
    """So many times some connections that are no TLS, to a server in a process of its own; how many were taken."""
    create_authority(folder / "authority", "fuzzing").issue_server("server", ["127.0.0.1"])
    words = [sys.executable, "-m", "splitrelay.deploy.fuzz_main", STAND, str(folder / "server")]
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


def main(words: list[str]) -> int:
    """In pieces, so that growing memory would show; 1 where something is wrong."""
    if words[:1] == [STAND]:
        stand(Path(words[1]))
        return 0
    if words and (len(words) != 2 or not all(word.isdecimal() for word in words)):
        said = f"got {' '.join(words)}. Say: fuzzing 10000 100"
        print(f"FRAMES and CONVERSATIONS are whole numbers; {said}", file=sys.stderr)
        return 2
    frames, conversations = (int(word) for word in (words or ["10000", "100"]))
    _frames(frames, 10)
    whole, peaks = _siege(conversations)
    with TemporaryDirectory() as folder:
        print(f"{junk(conversations // CALLS, Path(folder))} connections of junk, {_peak()} kB")
    _table(f"conversations of {whole.conversations} that reached each state, at the server", whole.states)
    _table("how they ended", whole.verdicts)
    _table("how the runs ended that were trained meanwhile", whole.stops)
    _table("wrong", wrong(whole, peaks))
    return int(bool(wrong(whole, peaks)))


def wrong(whole: Tale, peaks: Sequence[int]) -> Counter[str]:
    """What was found, what was not tried, and whether memory grew from piece to piece."""
    missing = [state for state in State if not whole.states[state]] if whole.conversations >= MANY else []
    found = whole.wrong + Counter(f"never reached: {state}" for state in missing)
    found += Counter({f"a server said what it may not: {what}": times for what, times in whole.slips.items()})
    for most, before in zip(GROWTH, (peaks[0], peaks[len(peaks) // 2]), strict=True):
        if peaks[-1] > most * before:
            found[f"memory grew from {before} to {peaks[-1]} kB"] += 1
    return found


def _frames(frames: int, pieces: int) -> None:
    began, seen = time.perf_counter(), Counter[str]()
    for piece in range(pieces):
        seen += fuzz(frames // pieces, piece)
        print(f"{frames // pieces} frames, {time.perf_counter() - began:.0f} s, peak memory {_peak()} kB")
    _table("what became of the frames", seen)


def _siege(conversations: int) -> tuple[Tale, list[int]]:
    began, whole, peaks = time.perf_counter(), Tale(), list[int]()
    for tale in siege(conversations, max(conversations // PIECE, 1)):
        whole += tale
        peaks.append(_peak())
        took, ends = time.perf_counter() - began, dict(tale.verdicts.most_common())
        print(f"{tale.conversations} conversations, {took:.0f} s, peak memory {peaks[-1]} kB: {ends}")
        print(f"then an honest visit to each server, at most {tale.honest:.2f} s", flush=True)
    return whole, peaks


def _table(title: str, counts: Counter[Any]) -> None:
    print(f"{title}:" if counts else f"{title}: nothing")
    for what, number in counts.most_common():
        print(f"{number:>9}  {what}")


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
