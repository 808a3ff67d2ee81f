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
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from splitrelay.algorithms.base import Done, Outcome, Visit
from splitrelay.deploy.client_options import get_client_name
from splitrelay.deploy.evaluation_requests import PartyRequest
from splitrelay.deploy.remote_clients import RemoteClients
from splitrelay.deploy.server_visit import ServerVisit, VisitLease
from splitrelay.engine.base import LOWER_ETA
from splitrelay.errors import Diverged, VisitFailed, WorkError
from splitrelay.network import limits, tensor_transfer
from splitrelay.network.connection_handler import EVALUATOR_NUMBER, FED_SERVER_NUMBER
from splitrelay.network.messages import Cancel, EvaluationRequest, Fail, Ready, Score
from splitrelay.network.shared_event_loop import MessageReceived

SOUND = 2  # visits of others that are committed after a rejected half, before its client gets the strike
KEPT = 10_000  # halves whose writers are remembered
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
    later: bool = False  # it said that it cannot open the half yet


@dataclass(frozen=True)
class FailedVisit:
    """A visit that was rejected, or that overflowed, and that is perhaps a strike of its client."""

    visit: Visit[Any]
    why: str


class SealedClients(RemoteClients):
    """Clients whose halves pass the server sealed."""

    is_chain = True  # every visit begins from the half of the visit before it

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.writers: dict[tuple[int, int], Visit[Any]] = {}  # the visit that left each half
        self.last_visits: dict[int, int] = {}  # client: the number of its last visit in the chain
        self.knows_all = False  # whether that is known since the first visit of the run
        self.rejected = set[int]()  # clients whose last visit was rejected: what they remember is not in the chain
        self.openers: dict[tuple[int, int], set[int]] = {}  # clients that opened a half
        self.rejections = Counter[tuple[int, int, int]]()
        self.complaints: list[Complaint] = []
        self.overflows: dict[tuple[int, int], dict[int, FailedVisit]] = {}  # by half and client: visits from it
        self.accused: dict[int, FailedVisit] = {}  # clients whose halves were rejected because of overflows
        self.sound = 0  # visits of others that were committed since then

    def run_all(self, visits: Iterable[Visit[Any]], /) -> Iterator[Outcome[Any]]:
        """Run the visits, and remember which of them left which half."""
        asked = list(visits)
        self.knows_all = self.knows_all or any(visit.x.visit == 0 for visit in asked)
        outcomes = list(super().run_all(asked))
        for visit, outcome in zip(asked, outcomes, strict=True):
            if isinstance(outcome, Done):
                self.writers[key_of(outcome.x)] = replace(visit, x=None)  # of x only the journal needs the place
                self.last_visits[visit.m] = outcome.x.visit
        self._settle_overflows(
            [visit for visit, outcome in zip(asked, outcomes, strict=True) if isinstance(outcome, Done)]
        )
        for kept in (self.writers, self.overflows):
            while len(kept) > KEPT:
                del kept[next(iter(kept))]
        self.openers = {}
        return iter(outcomes)

    def writer_of(self, x: Any) -> int | None:
        """Return the client that left this half, if it is known."""
        visit = self.writers.get(key_of(x))
        return None if visit is None else visit.m

    def find_verdict(self, x: Any, complainant: int, *, later: bool = False) -> Verdict:
        """Ask witnesses for the half of x until one of them answers.

        `later` says that the complainant cannot open it yet: then a witness that cannot open it yet is enough, too.

        Raises WorkError where the fed server wrote it and two parties cannot open it.
        """
        writer = self.writer_of(x)
        parties = {complainant, writer}
        same = [one for one in self.complaints if key_of(one.lease.visit.x) == key_of(x)]
        if {one.lease.visit.m for one in same if later or not one.later} - parties:
            return Verdict.REFUSED
        if not self.is_chain and self.openers.get(key_of(x), set()) - parties:
            return Verdict.OPENED
        expected = self._expected_history(complainant)
        for witness in self._witnesses(parties):
            answer = self.ask_to_open(witness, x, {} if expected is None else expected)
            if isinstance(answer, Score):
                is_complete = answer.accuracy == 1.0 and expected is not None
                return Verdict.OPENED if is_complete else Verdict.UNDECIDED
            if isinstance(answer, Fail) and (later or not answer.later):
                return Verdict.REFUSED
        return Verdict.UNDECIDED

    def ask_to_open(self, witness: int, x: Any, expected: dict[int, int]) -> Score | Fail | None:
        """Ask a party whether it can open the half of x; None where it does not answer."""
        question = PartyRequest(self, witness, lambda link: self._send_check(link, x, expected))
        before, self.question = self.question, question
        until = time.monotonic() + self.policy.lease
        try:
            while time.monotonic() < until and witness in self.hub.get_clients() and not question.unable:
                answer = question.next()
                if isinstance(answer, Score):
                    return answer
                if question.refusal is not None:
                    return question.refusal
                if question.failures:
                    break
        finally:
            self.question = before
        if question.unable:
            return Fail(0, question.why, later=True)
        question.cancel("the server waits no longer")
        if witness < EVALUATOR_NUMBER:
            self.strike_absent(witness, "it did not say whether it can open a half")
        return None

    def reject(self, x: Any, why: str, *, strike: bool = True) -> None:
        """Reject the visit that left the half of x; it is a strike of its client, unless said. Always raises."""
        visit = self.writers.pop(key_of(x), None)
        if visit is None:
            what = f"the run cannot go on from the half of visit {x.visit}"
            raise VisitFailed(what, value=why.rstrip("."), hint="Go back with serve --back-to ROUND.")
        facts = {"client": visit.m, "round": visit.r, "occurrence": visit.i, "fence": x.fence, "why": why}
        place = visit.r, visit.m, visit.i
        self.rejections[place] += 1
        self.last_visits.pop(visit.m, None)
        self.rejected.add(visit.m)
        self.journal.note("rejected", **facts)
        if strike:
            self.quarantine.strike(visit.m, why, round=visit.r, occurrence=visit.i)
        if self.policy.away == "skip":
            self.journal.skip(visit, why)
            self.journal.note("skipped", **facts)
        else:
            self.journal.drop(visit)
            if self.rejections[place] > self.policy.retries:
                what = f"client {visit.m} failed {self.rejections[place]} times in round {visit.r}"
                raise VisitFailed(what, value=why.rstrip("."), hint=HINT)
        raise VisitRejected(visit, why)

    # What clients say

    def _answer(self, lease: VisitLease, server_visit: ServerVisit, event: MessageReceived) -> None:
        if isinstance(event.message, Ready):
            self.openers.setdefault(key_of(lease.visit.x), set()).add(event.m)
        super()._answer(lease, server_visit, event)

    def _handle_failure(self, lease: VisitLease, said: Fail) -> None:
        """A client that fails before it is ready could not open the half."""
        if said.later or said.diverged or lease.stage or not lease.visit.x.visit:
            super()._handle_failure(lease, said)
            return
        self._note("unopened", lease, why=said.why)
        self._roll_back(lease, said.why)
        lease.after = math.inf  # nobody leases it before the complaint is decided
        self.complaints.append(Complaint(lease, said.why))

    def _postpone_visit(self, lease: VisitLease, why: str) -> None:
        writer = self.writer_of(lease.visit.x)
        who = "" if writer in (None, lease.visit.m) else f" ({get_client_name(writer)} wrote the half)"
        super()._postpone_visit(lease, f"{why.rstrip('. ')}{who}")

    def _handle_absence(self, lease: VisitLease, now: float) -> None:
        """A client that cannot open its half yet after a whole lease: perhaps nobody ever can."""
        x, m = lease.visit.x, lease.visit.m
        is_disputed = lease.unable is not None and lease.server_visit is None and self.policy.away == "skip"
        if not is_disputed or not len(x.blob) or self.writer_of(x) == m:
            super()._handle_absence(lease, now)
            return
        lease.since, lease.unable, lease.granted_at, lease.after = now, None, 0.0, math.inf
        self.complaints.append(Complaint(lease, lease.why, later=True))

    def _fail_visit(
        self, lease: VisitLease, why: str, link: int | None, *, diverged: bool = False, numeric: bool = False
    ) -> None:
        """A visit that overflows from the half of another client is no strike before others have tried the half."""
        x, m = lease.visit.x, lease.visit.m
        writer = self.writer_of(x)
        diverged = diverged or numeric  # there is nobody else who could say that the run diverges
        if not diverged or (x.visit and writer == m):
            super()._fail_visit(lease, why, link, diverged=diverged)
            return
        overflows = self.overflows.setdefault(key_of(x), {})
        overflows[m] = FailedVisit(replace(lease.visit, x=None), why)
        if self.is_chain and x.visit and set(overflows) - {m, writer}:
            self._note("failed", lease, why=why)
            self._roll_back(lease, why, None if link is None else Cancel(lease.fence, why[: limits.TEXT]))
            self._reject_overflow(x, f"the visits of {len(overflows)} clients from its half overflow: {why}")
        struck, lease.has_strike = lease.has_strike, True
        super()._fail_visit(lease, why, link, diverged=True)
        lease.has_strike = struck

    def _reject_overflow(self, x: Any, why: str) -> None:
        """Reject the visit that left a half from which two others overflow. Always raises.

        Raises Diverged where the half of another client was rejected just before: then the run itself diverges.
        """
        del self.overflows[key_of(x)]
        visit = self.writers.get(key_of(x))
        is_repeated = visit is not None and visit.m in self.accused
        if self.accused and not is_repeated:
            clients = ", ".join(map(str, [*self.accused, *([] if visit is None else [visit.m])]))
            raise Diverged(f"visits overflow from the halves of clients {clients}", value=why, hint=LOWER_ETA)
        self.diverged.clear()
        self.sound = 0
        if visit is not None and not is_repeated:
            self.accused[visit.m] = FailedVisit(visit, why)
        self.reject(x, why, strike=is_repeated)

    def _settle_overflows(self, made: Sequence[Visit[Any]]) -> None:
        """Strike the clients that overflowed from a half from which others have made their visits.

        From the half of a fed server everybody begins, also a client that has spoilt it: there the majority decides.

        Raises Diverged where most visits from such a half overflowed.
        """
        for key in {key_of(visit.x) for visit in made} | (set() if self.is_chain else set(self.overflows)):
            others = {visit.m for visit in made if key_of(visit.x) == key and visit.m != self.writer_of(visit.x)}
            failed = {m: one for m, one in self.overflows.get(key, {}).items() if m not in others}
            if not self.is_chain and len(failed) > max(len(others), 1):
                why = f"the visits of {len(failed)} clients overflow from the mean of visit {key[0]}"
                raise Diverged(why, value=next(iter(failed.values())).why, hint=LOWER_ETA)
            if len(others) > (0 if self.is_chain else len(failed)):
                self.overflows.pop(key, None)
                for m, one in failed.items():
                    self.quarantine.strike(m, one.why, round=one.visit.r, occurrence=one.visit.i)
        if not self.is_chain:
            self.overflows = {}

    def _commit(self, lease: VisitLease, done: Done[Any], link: int) -> None:
        super()._commit(lease, done, link)
        self._count_sound(lease.visit.m)

    def _count_sound(self, m: int) -> None:
        """Count a committed visit: after SOUND of them the clients whose halves were rejected get their strikes."""
        self.sound += m not in self.accused
        if self.sound < SOUND:
            return
        for one in self.accused.values():
            self.quarantine.strike(one.visit.m, one.why, round=one.visit.r, occurrence=one.visit.i)
        self.accused = {}

    def _process_event(self, waiting: Any) -> None:
        super()._process_event(waiting)
        for complaint in list(self.complaints):
            if not self._others_open(complaint):
                self._decide(complaint)

    def _others_open(self, complaint: Complaint) -> bool:
        """Whether another client, which was given the same half, has not said yet whether it can open it."""
        key = key_of(complaint.lease.visit.x)
        opening = (one for one in self.leases.values() if one.server_visit is not None and one.link is not None)
        return any(one.stage == 0 and key_of(one.visit.x) == key for one in opening)

    def _decide(self, complaint: Complaint) -> None:
        lease, x = complaint.lease, complaint.lease.visit.x
        m, writer = lease.visit.m, self.writer_of(x)
        verdict = self.find_verdict(x, m, later=complaint.later)
        with suppress(ValueError):
            self.complaints.remove(complaint)
        self.check_verdict(verdict, x, complaint.why)
        why = complaint.why
        if verdict is Verdict.UNDECIDED:
            lease.has_strike = True  # or it would be a strike
            why = f"{why.rstrip('.')} ({self.describe_dispute(writer)})"
        self._fail_visit(lease, why, None)

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

    def _witnesses(self, parties: set[int | None]) -> list[int]:
        """List the clients that can be asked now; a separate evaluator comes first."""
        active = {m for m, lease in self.leases.items() if lease.server_visit is not None}
        found = [
            m
            for m in self.hub.get_announced_clients()
            if m not in parties and m not in active and m != FED_SERVER_NUMBER
        ]
        return sorted(
            (m for m in found if not self.is_busy(m) and not self.quarantine.is_confined(m)),
            key=lambda m: (m != EVALUATOR_NUMBER, m),
        )

    def _expected_history(self, m: int) -> dict[int, int] | None:
        """Return the last visit of client m as the half must list it; None where the server does not know it."""
        if not self.is_chain or m >= EVALUATOR_NUMBER:
            return {}
        if m in self.last_visits:
            return {m: self.last_visits[m]}
        return {} if self.knows_all and m not in self.rejected else None

    def _send_check(self, link: int, x: Any, expected: dict[int, int]) -> int:
        fence, blob = self.journal.fences.next(), x.bytes()
        recipe = json.dumps({"check": {str(m): visit for m, visit in expected.items()}})
        digest = tensor_transfer.compute_sha256(blob)
        look = EvaluationRequest(fence, 0, len(blob), digest, x.visit, x.fence, recipe=recipe)
        self.hub.send(link, look, *tensor_transfer.split_into_chunks(fence, blob, self.hub.limits.piece))
        return fence


def key_of(x: Any) -> tuple[int, int]:
    """Name a half: the visit and the fence under which it was sealed."""
    return x.visit, x.fence
