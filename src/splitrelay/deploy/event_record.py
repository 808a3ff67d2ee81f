"""relay/events.jsonl, read back: which visits count after the server was set back, and who wrote the weights last."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from splitrelay.structured_text import parse_json

Event = dict[str, Any]
SET_BACK = ("back-to", "from-scratch")  # events after which visits from their round on count no more
WRITTEN = ("committed", "found")


def read_events(file: Path) -> list[Event]:
    """Read the server's record; a line that was not written to its end does not count."""
    events: list[Event] = []
    with suppress(OSError):
        for line in file.read_text(encoding="utf-8").splitlines():
            with suppress(ValueError):
                events.append(parse_json(line))
    return events


def standing_events(events: Iterable[Event]) -> list[Event]:
    """Leave out what happened in rounds that were dropped afterwards (serve --back-to, serve --from-scratch)."""
    kept: list[Event] = []
    for event in events:
        if event["event"] in SET_BACK:
            first = event["round"]
            kept = [one for one in kept if one["event"] in SET_BACK or one.get("round", -1) < first]
        kept.append(event)
    return kept


def last_writers(events: Iterable[Event], *, in_sequence: bool) -> tuple[int, list[int]] | None:
    """Find (round, clients) whose visits made the weights that the newest visits begin from; None for x^0.

    Where clients train in sequence that is the last one that was committed, else all of the last round that is over.
    """
    standing = standing_events(events)
    visits = [event for event in standing if event["event"] in WRITTEN]
    if not visits:
        return None
    if in_sequence:
        return visits[-1]["round"], [visits[-1]["client"]]
    begun = max(event["round"] for event in standing if event["event"] in (*WRITTEN, "leased"))
    before = [event for event in visits if event["round"] < begun]
    last = max((event["round"] for event in before), default=None)
    if last is None:
        return None
    return last, sorted({event["client"] for event in before if event["round"] == last})


def writers_sentence(found: tuple[int, list[int]], kept: Sequence[int]) -> str:
    """Say who wrote the weights last, and how to do without it; `kept` are the rounds of the checkpoints."""
    r, clients = found
    who = f"Client {clients[0]}" if len(clients) == 1 else f"Clients {', '.join(map(str, clients))}"
    earlier = [kept_round for kept_round in kept if kept_round <= r]
    back = f"serve --back-to {max(earlier)}" if earlier else "serve --from-scratch"
    without = f" --without {clients[0]}" if len(clients) == 1 else ""
    return f"{who} wrote the weights last, in round {r}. If they are the reason: {back}{without}."
