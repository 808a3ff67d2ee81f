"""Clients that are excluded from a run that has begun: their visits are skipped and recorded until they are let in.

relay/excluded.json keeps them over restarts. `serve --without M` adds one, `serve --with M` takes it out again; a start
without either changes nothing. Sizes stay as they are known, so weights and steps by size do not change.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from splitrelay.atomic_files import write_text
from splitrelay.deploy.journal import Journal
from splitrelay.errors import InputError, OutOfRange
from splitrelay.structured_text import parse_json


@dataclass(frozen=True)
class Exclusions:
    """The file of the clients that are excluded."""

    path: Path

    def read(self) -> set[int]:
        """Read who is excluded. Raises InputError where the file is damaged."""
        if not self.path.exists():
            return set()
        try:
            found = parse_json(self.path.read_text(encoding="ascii"))
            if isinstance(found, list) and all(type(m) is int for m in found):
                return set(found)
        except ValueError:
            pass
        hint = "Write it again: a list of clients, as in events.jsonl (excluded, readmitted)."
        raise InputError(f"{self.path} is damaged", hint=hint)

    def write(self, clients: Iterable[int]) -> None:
        """Replace the list."""
        write_text(self.path, json.dumps(sorted(clients)) + "\n")

    def update(
        self, journal: Journal, M: int, absent: Collection[int], without: Iterable[int], readmit: Iterable[int]
    ) -> frozenset[int]:
        """Exclude `without` and let `readmit` in again, with an event for each change; returns who is excluded.

        `absent` are clients that were left out when the run began: they have no part in it at all.
        """
        before, back = self.read(), set(readmit)
        for m in sorted(back & set(without)):
            raise InputError("a client is either with us or without", value=m, hint="Take one of the two options.")
        for m in sorted(back & set(absent)):
            hint = "Begin another run with it, in another directory."
            raise InputError("--with names a client that was left out when this run began", value=m, hint=hint)
        after = (before | (set(without) - set(absent))) - back
        if len(after | set(absent)) >= M:
            limit = f"at most {M - 1} of {M} clients excluded"
            raise OutOfRange("nobody is left to train with", value=len(after | set(absent)), limit=limit)
        if after != before:
            self.write(after)
        for m in sorted(after - before):
            journal.note("excluded", client=m, why="serve --without")
        for m in sorted(before - after):
            journal.note("readmitted", client=m, why="serve --with")
        return frozenset(after)
