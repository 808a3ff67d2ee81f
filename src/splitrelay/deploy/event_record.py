"""Read the server's event record, relay/events.jsonl.

The server can be set back to an earlier round (`serve --back-to`, `serve --from-scratch`). Events of the dropped rounds
stay in the file, but do not count any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from splitrelay.structured_text import parse_json

Event = dict[str, Any]
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
