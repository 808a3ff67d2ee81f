"""Hostile frames: `python -m tests.fuzz FRAMES CONVERSATIONS`.

FRAMES go to codec and table, CONVERSATIONS to real servers that train over a socket (see siege), and as many
connections that are no TLS to one with keys. True frames, damaged in every way: bytes flipped, cut, added, header
fields rewritten under a fitting checksum, and said in any state. Nothing but BadMessage may come of it, no conversation
may crash or hang a server, memory must stay flat, and every state of the table must have been reached at the server:
else the exit code is 1, and the last lines say why.
"""

from __future__ import annotations

import resource
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from splitrelay.chaos.unauthenticated_clients import CONNECTIONS
from splitrelay.network.protocol import State
from tests.fuzz.campaign import Tale, siege
from tests.fuzz.frames import fuzz, junk

MANY = 1000  # conversations in which every state must be reached
PIECE = 400  # conversations after which honest clients come, and memory is looked at
GROWTH = 1.5, 1.1  # times what it was after the first piece, and in the middle, that memory may grow to


def main(words: list[str]) -> int:
    """In pieces, so that growing memory would show; 1 where something is wrong."""
    if words and (len(words) != 2 or not all(word.isdecimal() for word in words)):
        said = f"got {' '.join(words)}. Say: python -m tests.fuzz 10000 100"
        print(f"FRAMES and CONVERSATIONS are whole numbers; {said}", file=sys.stderr)
        return 2
    frames, conversations = (int(word) for word in (words or ["10000", "100"]))
    _frames(frames, 10)
    whole, peaks = _siege(conversations)
    with TemporaryDirectory() as folder:
        print(f"{junk(conversations // CONNECTIONS, Path(folder))} connections of junk, {_peak()} kB")
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
