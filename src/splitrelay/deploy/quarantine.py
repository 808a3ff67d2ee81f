"""Strikes, quarantine and exclusion of clients that misbehave.

Rules:

- A visit that fails is one strike of its client, even if several attempts fail. With `--away skip`, a lease that
  expires while other clients are connected is a strike, too.
- After `Policy.strikes` strikes the client is in quarantine. It gets no visit before it is released.
- When the back-off is over, the client gets a visit on probation. If the visit is committed, the client is released and
  keeps all strikes but one. If it fails, the next back-off is twice as long.
- The operator can release a client at any time. This forgives all of its strikes.
- `Policy.forgive` committed visits in a row forgive one strike.

Files in RUNDIR/relay: the server alone writes `quarantine.json`. The operator makes `lift-M`; the server removes it.
There is one file for each client, so two writers cannot overwrite each other's request.

Only the thread that trains changes a `Quarantine`; other threads may read it.

`relay/excluded.json` keeps the excluded clients over restarts. `serve --without M` adds a client and `serve --with M`
removes it. A start without these options changes nothing. The numbers of samples stay the same, so weights and steps
that depend on them do not change.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from splitrelay.atomic_files import write_text
from splitrelay.deploy.client_options import get_client_name
from splitrelay.deploy.journal import Journal
from splitrelay.deploy.server_visit import Policy
from splitrelay.errors import InputError, OutOfRange
from splitrelay.network import limits
from splitrelay.runs.client_records import make_printable
from splitrelay.structured_text import parse_json

RECORD = "quarantine.json"
LIFT = re.compile(r"lift-([0-9]{1,5})")
CHECK = 1.0  # seconds between two searches for files of the operator


@dataclass
class Conduct:
    """The strikes of one client, and its quarantine if it is in one. Times are Unix seconds."""

    strikes: int = 0
    times: int = 0  # quarantines in a row; each doubles the back-off
    since: float = 0.0  # start of the quarantine; 0: the client is not in quarantine
    until: float = 0.0  # end of the back-off: from then on a probation visit is tried
    why: str = ""  # the reason of the last strike
    commits: int = 0  # committed visits since the last strike, or since one was forgiven

    @property
    def is_confined(self) -> bool:
        """Whether the client is in quarantine."""
        return self.since > 0


class Quarantine:
    """The strikes of all clients of a run; kept in `folder`, if one is given."""

    def __init__(
        self,
        policy: Policy,
        note: Callable[..., None],
        say: Callable[[str], None] = lambda text: None,
        folder: Path | None = None,
    ) -> None:
        self.policy, self.note, self.say, self.folder = policy, note, say, folder
        self.clients = {} if folder is None else read_record(folder)
        self._checked = -CHECK

    def strike(self, m: int, why: str, **facts: Any) -> bool:
        """Count a strike of client m, and return whether the client is in quarantine now."""
        if not self.policy.strikes:
            return False
        conduct = self.clients.setdefault(m, Conduct())
        conduct.strikes, conduct.commits, conduct.why = conduct.strikes + 1, 0, make_printable(why, limits.TEXT)
        count = {"strikes": conduct.strikes, "limit": self.policy.strikes}
        self.note("strike", client=m, **count, why=conduct.why, **facts)
        if conduct.strikes >= self.policy.strikes:
            self._start_quarantine(m, conduct)
        self._save()
        return conduct.is_confined

    def commit(self, m: int) -> None:
        """Count a committed visit of client m: end its quarantine, and forgive a strike after several in a row."""
        conduct = self.clients.get(m)
        if conduct is None:
            return
        conduct.commits += 1
        if conduct.is_confined:
            conduct.since = conduct.until = 0.0
            conduct.strikes, conduct.commits = max(self.policy.strikes - 1, 0), 0
            self._report_release(m, "probation")
        elif conduct.commits >= self.policy.forgive:
            conduct.strikes, conduct.commits = conduct.strikes - 1, 0
            if conduct.strikes <= 0:
                del self.clients[m]
            self._save()

    def lift(self, m: int) -> None:
        """Release client m, and forgive all of its strikes."""
        if self.clients.pop(m, None) is not None:
            self._report_release(m, "operator")

    def check_lifts(self, now: float) -> None:
        """Release clients as the operator's files ask, at most once in CHECK seconds of the monotonic clock `now`."""
        if self.folder is None or now - self._checked < CHECK:
            return
        self._checked = now
        for m in list(read_lifts(self.folder)):
            self.lift(m)
            with suppress(OSError):
                (self.folder / f"lift-{m}").unlink()

    def is_held(self, m: int) -> bool:
        """Return whether client m gets no visit now, because it is in quarantine and its back-off is not over."""
        conduct = self.clients.get(m)
        return conduct is not None and conduct.is_confined and time.time() < conduct.until

    def is_confined(self, m: int) -> bool:
        """Return whether client m is in quarantine, on probation or not."""
        conduct = self.clients.get(m)
        return conduct is not None and conduct.is_confined

    def remedy(self, m: int) -> str:
        """Return what the operator can do about the quarantine of client m."""
        return f"Repair the client, then run: splitrelay quarantine {self.run} --lift {m}"

    @property
    def run(self) -> str:
        """The directory of the run, for commands in messages."""
        return "RUNDIR" if self.folder is None else str(self.folder.parent)

    def _start_quarantine(self, m: int, conduct: Conduct) -> None:
        first, longest = self.policy.probation
        seconds, now = min(first * 2.0 ** min(conduct.times, 30), longest), time.time()
        conduct.times += 1
        conduct.since, conduct.until = conduct.since or now, now + seconds
        self.note("quarantined", client=m, strikes=conduct.strikes, probation_in=seconds, why=conduct.why)
        what = f"{get_client_name(m)} is in quarantine after {conduct.strikes} strikes ({conduct.why})"
        self.say(f"{what}; a visit on probation follows in {seconds:g} s. {self.remedy(m)}")

    def _report_release(self, m: int, by: str) -> None:
        self._save()
        self.note("released", client=m, by=by)
        self.say(f"{get_client_name(m)} is released from quarantine ({by})")

    def _save(self) -> None:
        if self.folder is not None:
            content = json.dumps({m: asdict(one) for m, one in self.clients.items()})
            write_text(self.folder / RECORD, content + "\n", private=True)


def read_record(folder: Path) -> dict[int, Conduct]:
    """Read the strikes of all clients from RUNDIR/relay; raise InputError if the file is damaged."""
    path = folder / RECORD
    try:
        found = parse_json(path.read_text(encoding="utf-8"))
        return {int(m): _parse_conduct(one) for m, one in found.items()}
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise InputError(f"cannot read {path}", value=error.strerror, hint="Make it readable.") from None
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        hint = "Remove the file: this forgives all strikes."
        raise InputError(f"{path} is damaged", value=str(error)[:100], hint=hint) from None


def _parse_conduct(one: dict[str, Any]) -> Conduct:
    numbers = (int(one["strikes"]), int(one["times"]), float(one["since"]), float(one["until"]))
    return Conduct(*numbers, make_printable(str(one["why"]), limits.TEXT), int(one["commits"]))


def read_lifts(folder: Path) -> Iterator[int]:
    """Yield the clients that the operator has released, but the server has not released yet."""
    for path in sorted(folder.glob("lift-*")):
        found = LIFT.fullmatch(path.name)
        if found is not None:
            yield int(found[1])


def request_lift(folder: Path, m: int) -> None:
    """Ask the server of this run, now or when it is started next, to release client m."""
    write_text(folder / f"lift-{m}", "")


@dataclass(frozen=True)
class Exclusions:
    """The file of the clients that are excluded."""

    path: Path

    def read(self) -> set[int]:
        """Read the numbers of the excluded clients. Raise InputError if the file is damaged."""
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
        """Exclude `without`, readmit `readmit`, record an event for each change, and return the excluded clients.

        `absent` are clients that were left out when the run began: they have no part in it at all.
        """
        before, back = self.read(), set(readmit)
        for m in sorted(back & set(without)):
            raise InputError("--with and --without name the same client", value=m, hint="Use one of the two options.")
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
