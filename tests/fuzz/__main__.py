"""Hostile frames: `python -m tests.fuzz FRAMES CONVERSATIONS`.

FRAMES go to codec and table, CONVERSATIONS to real servers that train over a socket (see campaign), and as many
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

from splitrelay.chaos.corrupt_messages import CONNECTIONS
from splitrelay.network.protocol import State
from tests.fuzz.campaign import CampaignResult, run_campaign
from tests.fuzz.frames import fuzz_frames, send_junk_connections

MANY = 1000  # conversations in which every state must be reached
PIECE = 400  # conversations after which honest clients come, and memory is looked at
GROWTH = 1.5, 1.1  # times what it was after the first piece, and in the middle, that memory may grow to


def main(words: list[str]) -> int:
    """Run the campaign in pieces, so that growing memory shows. Return 1 if anything was wrong."""
    if words and (len(words) != 2 or not all(word.isdecimal() for word in words)):
        said = f"got {' '.join(words)}. Say: python -m tests.fuzz 10000 100"
        print(f"FRAMES and CONVERSATIONS are whole numbers; {said}", file=sys.stderr)
        return 2
    frames, conversations = (int(word) for word in (words or ["10000", "100"]))
    _fuzz_frames(frames, 10)
    total, peaks = _run_campaign(conversations)
    with TemporaryDirectory() as folder:
        accepted = send_junk_connections(conversations // CONNECTIONS, Path(folder))
    print(f"{accepted} connections of junk, {_get_peak_memory()} kB")
    _print_table(f"conversations of {total.conversations} that reached each state, at the server", total.states)
    _print_table("how they ended", total.verdicts)
    _print_table("how the runs ended that were trained meanwhile", total.run_ends)
    _print_table("wrong", find_errors(total, peaks))
    return int(bool(find_errors(total, peaks)))


def find_errors(total: CampaignResult, peaks: Sequence[int]) -> Counter[str]:
    """Count what was wrong: errors, states that were never reached, memory that grew from piece to piece."""
    missing = [state for state in State if not total.states[state]] if total.conversations >= MANY else []
    found = total.wrong + Counter(f"never reached: {state}" for state in missing)
    found += Counter({f"a server said what it may not: {what}": times for what, times in total.violations.items()})
    for most, before in zip(GROWTH, (peaks[0], peaks[len(peaks) // 2]), strict=True):
        if peaks[-1] > most * before:
            found[f"memory grew from {before} to {peaks[-1]} kB"] += 1
    return found


def _fuzz_frames(frames: int, pieces: int) -> None:
    began, seen = time.perf_counter(), Counter[str]()
    for piece in range(pieces):
        seen += fuzz_frames(frames // pieces, piece)
        print(f"{frames // pieces} frames, {time.perf_counter() - began:.0f} s, peak memory {_get_peak_memory()} kB")
    _print_table("what became of the frames", seen)


def _run_campaign(conversations: int) -> tuple[CampaignResult, list[int]]:
    began, total, peaks = time.perf_counter(), CampaignResult(), list[int]()
    for result in run_campaign(conversations, max(conversations // PIECE, 1)):
        total += result
        peaks.append(_get_peak_memory())
        took, ends = time.perf_counter() - began, dict(result.verdicts.most_common())
        print(f"{result.conversations} conversations, {took:.0f} s, peak memory {peaks[-1]} kB: {ends}")
        print(f"then an honest visit to each server, at most {result.honest:.2f} s", flush=True)
    return total, peaks


def _print_table(title: str, counts: Counter[Any]) -> None:
    print(f"{title}:" if counts else f"{title}: nothing")
    for what, number in counts.most_common():
        print(f"{number:>9}  {what}")


def _get_peak_memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
