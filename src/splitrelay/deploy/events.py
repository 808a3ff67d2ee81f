"""Write and read the event record of a server, relay/events.jsonl, one JSON object per line.

Rules
- Events in LIMITED can be caused by a peer as often as it likes. Each source (a certificate, or a host without TLS)
  gets LINES of an event in its first minute and then one in each, however the texts differ; all sources together get
  MOST in a minute.
- The other events (leased, committed, skipped, ...) are bounded by the work of the run. None of them is left out,
  because other programs read them back.
- A file that has grown by LIMIT bytes is kept as events.1.jsonl, in the place of an older one. The new file begins with
  all events that are not LIMITED, so that nothing that is read back is lost.

The server can be set back to an earlier round (`serve --back-to`, `serve --from-scratch`). Events of the dropped rounds
stay in the file, but do not count any more.
"""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from splitrelay.atomic_files import build_write_error, replace_atomically
from splitrelay.structured_text import parse_json

Event = dict[str, Any]
LIMITED = frozenset(
    (
        "arrived", "gone", "refused", "left", "silent", "stale", "busy", "misspoke", "lost", "resumed", "restarted",
        "repeated", "unable",
    )
)  # fmt: skip
LINES = 30  # of one event of one source in a minute
MOST = 1000  # of one event of all sources in a minute
LIMIT = 64 * 2**20  # bytes that the file may grow by before it is begun anew
FAULTS = frozenset(
    (
        "busy", "dropped", "excluded", "expired", "failed", "lost", "misspoke", "other-cpu", "quarantined", "refused",
        "rejected", "silent", "skipped", "stalled", "strike", "unable", "unopened", "unreached", "unreadable",
    )
)  # fmt: skip
RECENT = 20  # faults that are kept in memory for the status
FIELD = 500  # letters of one text
OLDER = "events.1.jsonl"


class Often:
    """Count events per minute: some lines of a source in its first minute, then one in each."""

    def __init__(self, lines: int = LINES, most: int = MOST) -> None:
        self.lines, self.most = lines, most
        self._minute = 0
        self._lines: Counter[tuple[Any, ...]] = Counter()  # in this minute
        self._left: Counter[tuple[Any, ...]] = Counter()  # left out in this minute
        self._before: Counter[tuple[Any, ...]] = Counter()  # and in the one before

    def left_out(self, now: float, event: str, source: Any) -> int | None:
        """Return how many like it were left out in the minute before; None where this one is left out too."""
        if self._minute != now // 60:
            self._minute, self._lines, self._left, self._before = int(now // 60), Counter(), Counter(), self._left
        what = (event, source)
        self._lines[what] += 1
        full = self._lines[event,] >= self.most
        if full or self._lines[what] > (1 if self._before[what] else self.lines):
            self._left[what] += 1
            return None
        self._lines[event,] += 1
        return self._before[what]


class EventLog:
    """The file. Several threads may write to it."""

    def __init__(self, path: Path, limit: int = LIMIT, often: Often | None = None) -> None:
        self.path, self.limit = path, limit
        self._often = often or Often()
        self._began = time.monotonic()
        self._lock = threading.Lock()
        self._faults = deque[tuple[float, Event]](maxlen=RECENT)
        self._base = 0  # bytes that the file began with

    def note(self, event: str, source: Any = None, **facts: Any) -> None:
        """Write one line, unless there are too many of its kind; clocks of other hosts have no part in it.

        `source` names the peer that has caused the event. It is not written. Without it the client is counted.
        """
        seconds = time.monotonic() - self._began
        try:
            with self._lock:
                if event in LIMITED:
                    times = self._often.left_out(seconds, event, facts.get("client") if source is None else source)
                    if times is None:
                        return
                    facts |= {"left_out": times} if times else {}
                cut = {name: value[:FIELD] if isinstance(value, str) else value for name, value in facts.items()}
                if event in FAULTS:
                    self._faults.append((time.monotonic(), {"event": event, **cut}))
                line = json.dumps({"seconds": round(seconds, 3), "event": event, **cut}) + "\n"
                if append(self.path, line.encode()) > self._base + self.limit:
                    self._rotate()
        except OSError as error:
            raise build_write_error(self.path, error) from None

    def list_faults(self) -> list[Event]:
        """Return the newest faults of this process, the newest first, with `ago`, the seconds since each."""
        now = time.monotonic()
        with self._lock:
            return [{"ago": round(now - then, 1), **event} for then, event in reversed(self._faults)]

    def _rotate(self) -> None:
        """Keep the file under its other name, and begin a new one with the events that are read back."""
        with replace_atomically(self.path, private=True) as temporary:
            with self.path.open("rb") as old, temporary.open("wb") as new:
                new.writelines(line for line in old if _read_event(line) not in LIMITED)
            self._base = temporary.stat().st_size
            older = self.path.with_name(OLDER)
            older.unlink(missing_ok=True)
            os.link(self.path, older)


def _read_event(line: bytes) -> str | None:
    try:
        event = parse_json(line)["event"]
    except (ValueError, KeyError, TypeError):
        return None
    return event if isinstance(event, str) else None


def append(path: Path, line: bytes) -> int:
    """Write the line, whole, or raise; return the file's size. What a full disk has left of an earlier one is ended."""
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        size = os.fstat(descriptor).st_size
        torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
        whole = b"\n" * torn + line
        if os.write(descriptor, whole) < len(whole):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return size + len(whole)
    finally:
        os.close(descriptor)


RESET_EVENTS = ("back-to", "from-scratch")  # visits of their round and later rounds are dropped
COMMIT_EVENTS = ("committed", "found")  # "found": committed before a restart


def read_events(file: Path) -> list[Event]:
    """Read all events; ignore incomplete lines and a missing file."""
    events: list[Event] = []
    with suppress(OSError):
        for line in file.read_text(encoding="utf-8").splitlines():
            with suppress(ValueError):
                events.append(parse_json(line))
    return events


def get_visit(event: Event) -> tuple[int, int, int]:
    """Return (round, client, occurrence) of an event."""
    return event["round"], event["client"], event["occurrence"]


def list_valid_events(events: Iterable[Event]) -> list[Event]:
    """Return the events without those of rounds that were dropped later."""
    valid: list[Event] = []
    for event in events:
        if event["event"] in RESET_EVENTS:
            first = event["round"]
            valid = [one for one in valid if one["event"] in RESET_EVENTS or one.get("round", -1) < first]
        valid.append(event)
    return valid


def list_skipped_visits(events: Sequence[Event]) -> frozenset[tuple[int, int, int]]:
    """Return the skipped visits as (round, client, occurrence)."""
    return frozenset(get_visit(event) for event in list_valid_events(events) if event["event"] == "skipped")


def find_last_writers(events: Iterable[Event], *, in_sequence: bool) -> tuple[int, list[int]] | None:
    """Find the clients whose visits produced the weights from which the newest visits start.

    Args:
        events: All events of the record.
        in_sequence: Whether clients train one after the other. Then the last committed visit is the writer, otherwise
            all visits of the last complete round.

    Returns:
        (round, clients), or None if the weights are x^0.
    """
    valid = list_valid_events(events)
    commits = [event for event in valid if event["event"] in COMMIT_EVENTS]
    if not commits:
        return None
    if in_sequence:
        return commits[-1]["round"], [commits[-1]["client"]]
    current = max(event["round"] for event in valid if event["event"] in (*COMMIT_EVENTS, "leased"))
    last = max((event["round"] for event in commits if event["round"] < current), default=None)
    if last is None:
        return None
    return last, sorted({event["client"] for event in commits if event["round"] == last})


def describe_last_writers(writers: tuple[int, list[int]], checkpoints: Sequence[int]) -> str:
    """Return a sentence that names the last writers and the command that drops their weights.

    Args:
        writers: Round and clients from `find_last_writers`.
        checkpoints: The rounds of the checkpoints.
    """
    r, clients = writers
    names = f"Client {clients[0]}" if len(clients) == 1 else f"Clients {', '.join(map(str, clients))}"
    earlier = [checkpoint for checkpoint in checkpoints if checkpoint <= r]
    command = f"serve --back-to {max(earlier)}" if earlier else "serve --from-scratch"
    without = f" --without {clients[0]}" if len(clients) == 1 else ""
    return f"{names} wrote the weights last, in round {r}. If they are the reason: {command}{without}."
