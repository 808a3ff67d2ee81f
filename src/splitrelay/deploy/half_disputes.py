"""Disputes over sealed halves: a client, the evaluator or the fed server says that it cannot open a half.

The server cannot look into the half. Either its writer sealed something that nobody can use, or the party that
complains does not tell the truth. Rules:

- The server asks another client, the witness, to open the same half. The witness is neither the writer of the half nor
  the party that complains.
- If the witness opens the half, the visit of the client that complains has failed.
- If the witness cannot open it either, the visit that left the half is rejected, and its client gets a strike. The run
  goes on from the half before it: with `--away skip` without the rejected visit, otherwise the visit is made again.
- If no witness answers, nobody gets a strike. The visit of the client that complains has failed all the same.

One client alone can therefore never cause a strike of another one. Each half also lists the last visit of every client
that it has been through. A writer can remove entries from this list, and later clients pass the shorter list on, so
nobody knows who removed them: a complaint about a half with an incomplete list is not a strike of anybody.

A client that says that it cannot open a half *yet* (the half has an epoch that it was not given) is asked again for a
lease. Then a witness is asked, too. If the witness cannot open the half yet either, the visit that left it is rejected.

A half within the bound can still make every later visit overflow. Rules for halves that pass from client to client:

- A client whose visit overflows from the half of another client gets no strike yet.
- If another client makes its visit from the same half, the first one gets the strike.
- If the visit of another client overflows, too, the visit that left the half is rejected. Its client gets the strike
  when SOUND visits of others were committed after that. If the half of another client is rejected for the same reason
  before, the run itself diverges: it stops, and nobody gets a strike.
- The fed server makes one half of many. If most visits from it overflow, nobody knows whose half is the reason: the run
  stops, and nobody gets a strike. If most visits are made, the clients of the others get a strike.

The question to a witness is a `look` whose recipe is a JSON object with the key `check`. A witness answers `score` with
the accuracy 1 (0 where the list is not complete), or `fail`.
"""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from splitrelay.algorithms.base import Done, Outcome, Visit
from splitrelay.atomic_files import write_text
from splitrelay.deploy.client_options import get_client_name
from splitrelay.deploy.evaluation_requests import PartyRequest, send_request
from splitrelay.deploy.remote_clients import RemoteClients
from splitrelay.deploy.server_visit import VisitLease
from splitrelay.engine.base import LOWER_ETA
from splitrelay.errors import Diverged, InputError, VisitFailed, WorkError
from splitrelay.network import limits
from splitrelay.network.messages import Cancel, Fail, Score
from splitrelay.network.server_connection import EVALUATOR_NUMBER, FED_SERVER_NUMBER
from splitrelay.structured_text import parse_json

SOUND = 2  # visits of others that are committed after a rejected half, before its client gets the strike
PENDING = "pending-strikes.json"  # in RUNDIR/relay
KEPT = 10_000  # halves whose writers are stored
HINT = "Repair the client; the same command goes on from here."


class Verdict(StrEnum):
    """What is known of a half that somebody could not open."""

    OPENED = "opened"  # by somebody who did not write it
    REFUSED = "refused"  # by two parties that did not write it
    UNDECIDED = "undecided"


class VisitRejected(WorkError):
    """A committed visit does not count any more; the run goes on from the half before it."""

    def __init__(self, visit: Visit[Any], why: str) -> None:
        super().__init__(f"the visit of client {visit.m} in round {visit.r} was rejected: {why.rstrip('.')}")
        self.visit = visit


@dataclass(frozen=True)
class Complaint:
    """A visit whose client could not open the half that it was given."""

    lease: VisitLease
    why: str
    later: bool = False  # the client reports that it cannot open the half yet


@dataclass(frozen=True)
class FailedVisit:
    """A visit that was rejected, or that overflowed, and that is perhaps a strike of its client."""

    visit: Visit[Any]
    why: str


@dataclass(frozen=True)
class PendingStrike:
    """A strike that a client gets if the run goes on without its rejected visit."""

    r: int
    i: int
    why: str


class PendingStrikes:
    """The clients whose halves were rejected because of overflows. The file keeps them over restarts of the server."""

    def __init__(self, path: Path) -> None:
        """Read the file, if there is one. Raises InputError where it is damaged."""
        self.path = path
        self.sound, self.accused = _read_pending(path) if path.exists() else (0, {})

    def add(self, visit: Visit[Any], why: str) -> None:
        """Accuse the client of a rejected visit, and count sound visits from 0."""
        self.sound = 0
        self.accused.setdefault(visit.m, PendingStrike(visit.r, visit.i, why))
        self._save()

    def count_sound(self, m: int) -> dict[int, PendingStrike]:
        """Count a committed visit of client m, and return the strikes that are due after it."""
        if not self.accused or m in self.accused:
            return {}
        self.sound += 1
        due: dict[int, PendingStrike] = {}
        if self.sound >= SOUND:
            due, self.accused = self.accused, {}
        self._save()
        return due

    def _save(self) -> None:
        content = {"sound": self.sound, "accused": {m: asdict(one) for m, one in self.accused.items()}}
        write_text(self.path, json.dumps(content) + "\n", private=True)


def _read_pending(path: Path) -> tuple[int, dict[int, PendingStrike]]:
    try:
        content = parse_json(path.read_text(encoding="utf-8"))
        accused = {
            int(m): PendingStrike(int(one["r"]), int(one["i"]), str(one["why"])[: limits.TEXT])
            for m, one in content["accused"].items()
        }
        return int(content["sound"]), accused
    except OSError as error:
        raise InputError(f"cannot read {path}", value=error.strerror, hint="Make it readable.") from None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        hint = "Remove the file: then these clients get no strike for the visits that were rejected."
        raise InputError(f"{path} is damaged", value=str(error)[:100], hint=hint) from None


class HalfDisputes:
    """Knows who left each sealed half, and decides complaints about halves."""

    def __init__(
        self,
        clients: RemoteClients,
        *,
        is_chain: bool = True,
        default_writer: int | None = None,
        reject_unknown: Callable[[Any, str], None] | None = None,
        on_reject: Callable[[str], None] = lambda why: None,
    ) -> None:
        """Start without halves.

        Args:
            clients: The clients.
            is_chain: Whether every visit starts from the half of the visit before it.
            default_writer: The writer of a half that no client left.
            reject_unknown: Gets x and a reason for a half that no client left, and raises. None: raise VisitFailed.
            on_reject: Gets the reason before a visit is rejected.
        """
        self.clients, self.is_chain, self.default_writer = clients, is_chain, default_writer
        self.reject_unknown, self.on_reject = reject_unknown or _reject_unknown_half, on_reject
        self.scheduler = clients.scheduler
        self.writers: dict[tuple[int, int], Visit[Any]] = {}  # the visit that left each half
        self.last_visits: dict[int, int] = {}  # client: the number of its last visit in the chain
        self.knows_all = False  # whether that is known since the first visit of the run
        self.rejected = set[int]()  # clients whose last visit was rejected: their own records are not in the chain
        self.openers: dict[tuple[int, int], set[int]] = {}  # clients that opened a half
        self.rejections = Counter[tuple[int, int, int]]()
        self.complaints: list[Complaint] = []
        self.overflows: dict[tuple[int, int], dict[int, FailedVisit]] = {}  # by half and client: visits from it
        self.pending = PendingStrikes(clients.journal.events.with_name(PENDING))

    def start_visits(self, visits: list[Visit[Any]]) -> None:
        """Note whether the run starts with these visits."""
        self.knows_all = self.knows_all or any(visit.x.visit == 0 for visit in visits)

    def record_outcomes(self, visits: list[Visit[Any]], outcomes: list[Outcome[Any]]) -> None:
        """Record which visit left which half."""
        for visit, outcome in zip(visits, outcomes, strict=True):
            if isinstance(outcome, Done):
                self.writers[get_half_key(outcome.x)] = replace(visit, x=None)  # only its place is needed
                self.last_visits[visit.m] = outcome.x.visit
        self._settle_overflows(
            [visit for visit, outcome in zip(visits, outcomes, strict=True) if isinstance(outcome, Done)]
        )
        for kept in (self.writers, self.overflows):
            while len(kept) > KEPT:
                del kept[next(iter(kept))]
        self.openers = {}

    def record_opening(self, x: Any, m: int) -> None:
        """Record that client m opened the half of x."""
        self.openers.setdefault(get_half_key(x), set()).add(m)

    def find_half_writer(self, x: Any) -> int | None:
        """Return the party that left this half, if it is known."""
        visit = self.writers.get(get_half_key(x))
        return self.default_writer if visit is None else visit.m

    def find_verdict(self, x: Any, complainant: int, *, later: bool = False) -> Verdict:
        """Ask witnesses for the half of x until one of them answers.

        `later` says that the complainant cannot open it yet: then a witness that cannot open it yet is enough, too.

        Raises WorkError where the fed server wrote it and two parties cannot open it.
        """
        writer = self.find_half_writer(x)
        parties = {complainant, writer}
        same = [one for one in self.complaints if get_half_key(one.lease.visit.x) == get_half_key(x)]
        if {one.lease.visit.m for one in same if later or not one.later} - parties:
            return Verdict.REFUSED
        if not self.is_chain and self.openers.get(get_half_key(x), set()) - parties:
            return Verdict.OPENED
        expected = self._get_expected_history(complainant)
        for witness in self._list_witnesses(parties):
            answer = self.ask_to_open(witness, x, {} if expected is None else expected)
            if isinstance(answer, Score):
                is_complete = answer.accuracy == 1.0 and expected is not None
                return Verdict.OPENED if is_complete else Verdict.UNDECIDED
            if isinstance(answer, Fail) and (later or not answer.later):
                return Verdict.REFUSED
        return Verdict.UNDECIDED

    def ask_to_open(self, witness: int, x: Any, expected: dict[int, int]) -> Score | Fail | None:
        """Ask a party whether it can open the half of x. Return None if it does not answer.

        Its time begins anew whenever more of the half has reached it: a slow connection is no reason for a strike.
        """
        recipe = json.dumps({"check": {str(m): visit for m, visit in expected.items()}})

        def ask(connection: int) -> int:
            return send_request(self.clients, connection, x.bytes(), x.visit, x.fence, recipe=recipe)

        question = PartyRequest(self.clients, witness, ask)
        before, self.scheduler.question = self.scheduler.question, question
        lease, moved = self.clients.policy.lease, question.transferred
        until = time.monotonic() + lease
        try:
            while (
                time.monotonic() < until and witness in self.clients.connections.get_clients() and not question.unable
            ):
                answer = question.next()
                if isinstance(answer, Score):
                    return answer
                if question.refusal is not None:
                    return question.refusal
                if question.failures:
                    break
                if question.transferred != moved:
                    moved, until = question.transferred, time.monotonic() + lease
        finally:
            self.scheduler.question = before
        if question.unable:
            return Fail(0, question.why, later=True)
        question.cancel("the server does not wait any longer")
        if witness < EVALUATOR_NUMBER:
            self.scheduler.strike_absent(witness, "it did not say whether it can open a half")
        return None

    def reject(self, x: Any, why: str, *, strike: bool = True) -> None:
        """Reject the visit that left the half of x, with or without a strike of its client. Always raises."""
        self.on_reject(why)
        visit = self.writers.pop(get_half_key(x), None)
        if visit is None:
            self.reject_unknown(x, why)
            raise AssertionError
        facts = {"client": visit.m, "round": visit.r, "occurrence": visit.i, "fence": x.fence, "why": why}
        place = visit.r, visit.m, visit.i
        self.rejections[place] += 1
        self.last_visits.pop(visit.m, None)
        self.rejected.add(visit.m)
        self.clients.journal.note("rejected", **facts)
        if strike:
            self.scheduler.quarantine.strike(visit.m, why, round=visit.r, occurrence=visit.i)
        if self.clients.policy.away == "skip":
            self.clients.journal.skip(visit, why)
            self.clients.journal.note("skipped", **facts)
        else:
            self.clients.journal.drop(visit)
            if self.rejections[place] > self.clients.policy.retries:
                what = f"client {visit.m} failed {self.rejections[place]} times in round {visit.r}"
                raise VisitFailed(what, value=why.rstrip("."), hint=HINT)
        raise VisitRejected(visit, why)

    # Complaints

    def handle_failure(self, lease: VisitLease, message: Fail) -> bool:
        """Take a complaint: a client that fails before it is ready could not open the half."""
        if message.later or message.diverged or lease.stage or not lease.visit.x.visit:
            return False
        self.scheduler.note("unopened", lease, why=message.why)
        self.scheduler.roll_back(lease, message.why)
        lease.after = math.inf  # it is not leased before the complaint is decided
        self.complaints.append(Complaint(lease, message.why))
        return True

    def add_writer(self, lease: VisitLease, why: str) -> str:
        """Return the reason of a client that cannot open its half yet, with the writer of the half."""
        writer = self.find_half_writer(lease.visit.x)
        who = "" if writer is None or writer == lease.visit.m else f" ({get_client_name(writer)} wrote the half)"
        return f"{why.rstrip('. ')}{who}"

    def take_absence(self, lease: VisitLease, now: float) -> bool:
        """Take a complaint if a client cannot open its half yet after a whole lease: perhaps nobody ever can.

        Where the half went directly to the client, its writer has to deposit it first, for which it has its own time.
        """
        x, m = lease.visit.x, lease.visit.m
        is_unable = lease.unable is not None and lease.server_visit is None
        if is_unable and x.visit and not len(x.blob):
            return True
        if not is_unable or self.clients.policy.away != "skip" or not len(x.blob) or self.find_half_writer(x) == m:
            return False
        lease.since, lease.unable, lease.granted_at, lease.after = now, None, 0.0, math.inf
        self.complaints.append(Complaint(lease, lease.why, later=True))
        return True

    # Halves from which visits overflow

    def fail_visit(
        self, lease: VisitLease, why: str, connection: int | None, *, diverged: bool = False, numeric: bool = False
    ) -> None:
        """Fail a visit. An overflow from the half of another client is no strike before others have tried the half."""
        x, m = lease.visit.x, lease.visit.m
        writer = self.find_half_writer(x)
        diverged = diverged or numeric  # nobody else could say that the run diverges
        if not diverged or (x.visit and writer == m):
            self.scheduler.fail_visit(lease, why, connection, diverged=diverged)
            return
        overflows = self.overflows.setdefault(get_half_key(x), {})
        overflows[m] = FailedVisit(replace(lease.visit, x=None), why)
        if self.is_chain and x.visit and set(overflows) - {m, writer}:
            self.scheduler.note("failed", lease, why=why)
            self.scheduler.roll_back(
                lease, why, None if connection is None else Cancel(lease.fence, why[: limits.TEXT])
            )
            self._reject_overflow(x, f"the visits of {len(overflows)} clients from its half overflow: {why}")
        before, lease.has_strike = lease.has_strike, True
        self.scheduler.fail_visit(lease, why, connection, diverged=True)
        lease.has_strike = before

    def _reject_overflow(self, x: Any, why: str) -> None:
        """Reject the visit that left a half from which two others overflow. Always raises.

        Raises:
            Diverged: The half of another client was rejected just before. Then the run itself diverges.
        """
        del self.overflows[get_half_key(x)]
        visit = self.writers.get(get_half_key(x))
        accused = self.pending.accused
        is_repeated = visit is not None and visit.m in accused
        if accused and not is_repeated:
            clients = ", ".join(map(str, [*accused, *([] if visit is None else [visit.m])]))
            raise Diverged(f"visits overflow from the halves of clients {clients}", value=why, hint=LOWER_ETA)
        self.scheduler.diverged.clear()
        if visit is not None:
            self.pending.add(visit, why)
        self.reject(x, why, strike=is_repeated)

    def _settle_overflows(self, made: Sequence[Visit[Any]]) -> None:
        """Strike the clients that overflowed from a half from which others have made their visits.

        All visits start from the half of a fed server, also those of a client that has spoilt it: the majority decides.

        Raises:
            Diverged: Most visits from such a half overflowed.
        """
        for key in {get_half_key(visit.x) for visit in made} | (set() if self.is_chain else set(self.overflows)):
            others = {
                visit.m for visit in made if get_half_key(visit.x) == key and visit.m != self.find_half_writer(visit.x)
            }
            failed = {m: one for m, one in self.overflows.get(key, {}).items() if m not in others}
            if not self.is_chain and len(failed) > max(len(others), 1):
                why = f"the visits of {len(failed)} clients overflow from the mean of visit {key[0]}"
                raise Diverged(why, value=next(iter(failed.values())).why, hint=LOWER_ETA)
            if len(others) > (0 if self.is_chain else len(failed)):
                self.overflows.pop(key, None)
                for m, one in failed.items():
                    self.scheduler.quarantine.strike(m, one.why, round=one.visit.r, occurrence=one.visit.i)
        if not self.is_chain:
            self.overflows = {}

    def count_sound(self, m: int) -> None:
        """Count a committed visit of client m. After SOUND of them the accused clients get their strikes."""
        for accused, one in self.pending.count_sound(m).items():
            self.scheduler.quarantine.strike(accused, one.why, round=one.r, occurrence=one.i)

    # Decisions

    def decide_complaints(self) -> None:
        """Decide the complaints for which no other client is about to open the same half."""
        for complaint in list(self.complaints):
            if not self._is_being_opened(complaint):
                self._decide(complaint)

    def _is_being_opened(self, complaint: Complaint) -> bool:
        """Return whether another client has got the same half and has not reported yet whether it can open it."""
        key = get_half_key(complaint.lease.visit.x)
        opening = (
            one for one in self.scheduler.leases.values() if one.server_visit is not None and one.connection is not None
        )
        return any(one.stage == 0 and get_half_key(one.visit.x) == key for one in opening)

    def _decide(self, complaint: Complaint) -> None:
        lease, x = complaint.lease, complaint.lease.visit.x
        m, writer = lease.visit.m, self.find_half_writer(x)
        verdict = self.find_verdict(x, m, later=complaint.later)
        with suppress(ValueError):
            self.complaints.remove(complaint)
        self.check_verdict(verdict, x, complaint.why)
        why = complaint.why
        if verdict is Verdict.UNDECIDED:
            lease.has_strike = True  # so that it does not get another one
            why = f"{why.rstrip('.')} ({self.describe_dispute(writer)})"
        self.scheduler.fail_visit(lease, why, None)

    def check_verdict(self, verdict: Verdict, x: Any, why: str) -> None:
        """Reject the visit that left the half of x if the verdict says so."""
        if verdict is Verdict.REFUSED:
            self.complaints.clear()
            self.reject(x, f"nobody can open the half of visit {x.visit}: {why}")

    def describe_dispute(self, writer: int | None) -> str:
        """Say who wrote a half, and that nobody else could be asked."""
        who = "an unknown client" if writer is None else get_client_name(writer)
        return f"{who} wrote it, and no other client could say who is to blame"

    # The witnesses

    def _list_witnesses(self, parties: set[int | None]) -> list[int]:
        """List the clients that can be asked now; a separate evaluator comes first."""
        active = {m for m, lease in self.scheduler.leases.items() if lease.server_visit is not None}
        found = [
            m
            for m in self.clients.connections.get_announced_clients()
            if m not in parties and m not in active and m != FED_SERVER_NUMBER
        ]
        return sorted(
            (m for m in found if not self.clients.is_busy(m) and not self.scheduler.quarantine.is_confined(m)),
            key=lambda m: (m != EVALUATOR_NUMBER, m),
        )

    def _get_expected_history(self, m: int) -> dict[int, int] | None:
        """Return the last visit of client m as the half must list it; None where the server does not know it."""
        if not self.is_chain or m >= EVALUATOR_NUMBER:
            return {}
        if m in self.last_visits:
            return {m: self.last_visits[m]}
        return {} if self.knows_all and m not in self.rejected else None


def get_half_key(x: Any) -> tuple[int, int]:
    """Name a half: the visit and the fence under which it was sealed."""
    return x.visit, x.fence


def _reject_unknown_half(x: Any, why: str) -> None:
    what = f"the run cannot go on from the half of visit {x.visit}"
    raise VisitFailed(what, value=why.rstrip("."), hint="Go back with serve --back-to ROUND.")
