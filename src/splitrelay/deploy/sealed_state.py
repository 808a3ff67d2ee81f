"""Peer to peer: the clients' half passes the server sealed, and the evaluator is asked how good the model is."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch

from splitrelay.algorithms.base import Done, Visit
from splitrelay.deploy.client_options import name_of
from splitrelay.deploy.evaluation_requests import PartyRequest
from splitrelay.deploy.half_disputes import SealedClients, Verdict
from splitrelay.deploy.reported_numbers import find_score_error
from splitrelay.deploy.server_visit import CutVisit, ServerVisit, ServerVisits, build_lease, to_arrays, to_tensor
from splitrelay.engine.base import HEADER, check_finite
from splitrelay.engine.torch_engine import is_finite
from splitrelay.errors import InputError, WorkError
from splitrelay.evaluation import SLICE, Score
from splitrelay.network import messages, tensor_transfer
from splitrelay.network.codec import BadMessage
from splitrelay.network.codec import finite as numbers
from splitrelay.network.connection_handler import JUDGE
from splitrelay.network.messages import Deposit, Lease
from splitrelay.runs.spec import Spec
from splitrelay.security.encryption import Tampered, digest_of, label_of
from splitrelay.security.sealing_session import sealed_sizes

UNSEEN = Score(math.nan, math.nan, ())
WAY_OUT = "Use route=centralized, or an algorithm that only passes x on, such as ssl."


@dataclass(eq=False)
class Sealed:
    """x as the server has it: a half that it cannot read, sealed after a visit under a fence, and its own half.

    Where clients hand to each other the sealed half may come later than the visit that begins from it.
    """

    blob: torch.Tensor  # bytes; none of them: the first client makes x_c^0, or a client has them (see handing)
    top: torch.Tensor
    visit: int = 0
    fence: int = 0

    def _refuse(self, _: Any) -> Any:
        what = "peer to peer the server does not hold the clients' halves, and cannot average them"
        raise InputError(what, hint=WAY_OUT)

    __add__ = __sub__ = __rmul__ = __truediv__ = _refuse

    def bytes(self) -> bytes:
        """The sealed half as it travels."""
        return self.blob.numpy().tobytes()

    def fill(self, other: Sealed) -> None:
        """The sealed half has come, perhaps under a later fence; the server's own half is the same."""
        self.blob, self.visit, self.fence = other.blob, other.visit, other.fence


def unmade(top: torch.Tensor, kind: type[Sealed] = Sealed) -> Sealed:
    """x^0: the server makes its own half, and the first client the other, from the same named randomness."""
    return kind(torch.zeros(0, dtype=torch.uint8), top)


Kind = TypeVar("Kind", bound=Sealed)


def sealed_half(half: bytes, visit: int, fence: int, top: torch.Tensor, kind: type[Kind], spec: Spec) -> Kind:
    """What a client deposits, if it is labelled as this visit's and this spec's."""
    try:
        label = label_of(half)
    except Tampered as error:
        raise BadMessage(error.what) from None
    if (label.visit, label.fence) != (visit, fence):
        raise BadMessage("a half was sealed for another visit", value=(label.visit, label.fence))
    if label.spec_digest != digest_of(spec.identity):
        raise BadMessage("a half was sealed for another spec")
    return kind(torch.from_numpy(np.frombuffer(half, np.uint8).copy()), top, visit, fence)


class SealedVisit(CutVisit):
    """A visit whose half goes down sealed and comes back sealed."""

    def __init__(self, server_visits: ServerVisits, visit: Visit[Any], engine: Any) -> None:
        self.server_visits, self.visit, self.engine, self.x = server_visits, visit, engine, visit.x
        self.above = to_arrays(replace(visit, x=visit.x.top))
        self.top = engine.begin(self.above)
        self.up = self.down = 0
        self.losses, self.replies, self.finished = [], {}, False

    def lease(self, fence: int, visit: int) -> tuple[Lease, bytes]:
        """What the blob was sealed under goes with it: who opens it checks that."""
        blob = self.x.bytes()
        words = build_lease(self.visit, fence, self.x.visit + 1, blob)
        return replace(words, sealed_visit=self.x.visit, sealed_fence=self.x.fence), blob

    def done(self, deposit: Deposit, half: bytes, fence: int) -> Done[Any]:
        """Another sealed half, of this visit and fence."""
        return Done(self.read_deposit(half, fence, self.get_top()), self.cost())

    def read_deposit(self, half: bytes, fence: int, top: torch.Tensor) -> Sealed:
        """Return the deposit over this half of the server's. Raises BadMessage where its outside is wrong."""
        spec, shape = self.server_visits.spec, self.server_visits.shape
        found: Sealed = sealed_half(half, self.x.visit + 1, fence, top, type(self.x), spec)
        if len(half) not in sealed_sizes(tensor_transfer.size_of({"x": shape.boundary}, spec.model.dtype)):
            raise BadMessage("a sealed half has another length than the clients' half", value=len(half))
        before = label_of(self.x.bytes()).epoch if len(self.x.blob) else 0
        if label_of(half).epoch < before:
            raise BadMessage("a half was sealed in an epoch that is over", value=label_of(half).epoch, limit=before)
        return found

    def get_top(self) -> torch.Tensor:
        """Return the server's half after the last step; raise Diverged if that step overflowed."""
        self.check_finished()
        x = to_tensor(self.engine.get_x())
        check_finite(is_finite(x), self.visit)
        return x

    def handover(self) -> int:
        """As if it were not sealed: the same count as in a simulation."""
        return HEADER + self.server_visits.shape.boundary * int(self.x.top.element_size())


class SealedVisits(ServerVisits):
    """Turns in which the clients' half is sealed."""

    kind: type[Sealed] = Sealed

    def __call__(self, visit: Visit[Any]) -> ServerVisit:
        return SealedVisit(self, visit, self.engine())


class RemoteEvaluator:
    """The evaluator client in the place of an evaluator: it has the test set, and the server the upper half."""

    def __init__(self, remote: SealedClients, m: int) -> None:
        self.remote, self.hub, self.m = remote, remote.hub, m
        self.r = 0  # set by whoever takes a run up: the row of the round before it is there
        self.begun = False
        self.last_slice: int | None = None  # of the test set, once a slice came that was not full

    def score(self, x: Sealed) -> Score:
        """What the evaluator sees; not asked again, as clients may know visits after x, and refuse the past."""
        before, self.begun = not self.begun and self.r > 0, True
        if before:
            return UNSEEN
        found = self._asked(x, keep=False)
        self.r += 1
        return UNSEEN if found is None else Score(found.loss, found.accuracy, found.per_class)

    def hand_over(self, x: Sealed) -> None:
        """The upper half too, so that the evaluator can write the whole model down."""
        self._asked(x, keep=True)

    def _asked(self, x: Sealed, keep: bool) -> messages.Score | None:
        x = self.remote.whole(x)
        if not keep and self.remote.get_quarantine_reason(self.m) is not None:
            self.remote.journal.note("unseen", client=self.m)
            return None
        top = tensor_transfer.packed(x=x.top.numpy()) if keep else b""
        question = PartyRequest(self.remote, self.m, lambda link: self._begin(link, x, top))
        engine = self.remote.server_visits.engine()
        self.remote.question = question
        try:
            while True:
                word = question.next()
                error = self._find_error(word) if isinstance(word, messages.Score) else None
                if error is not None:
                    question.reject(error)
                elif isinstance(word, messages.Score):
                    if self.m == JUDGE:  # of a client, its visits are counted
                        self.remote.quarantine.commit(self.m)
                    return word
                if isinstance(word, messages.Predict) and self._is_in_order(word, question):
                    self._above(engine.predict(x.top.numpy(), word.h), word, question)
                if question.refusal is not None and question.k < 0 and self._is_disputed(x, question, keep):
                    self.remote.journal.note("unseen", client=self.m)
                    return None
                if not keep and self._too_late(question):  # without the model nothing is finished
                    question.cancel("nobody waits for it any longer")
                    self.remote.journal.note("unseen", client=self.m)
                    return None
                question.check_failures()
        finally:
            self.remote.question = None
            self.remote.server_visits.free.append(engine)

    def _is_disputed(self, x: Sealed, question: PartyRequest, keep: bool) -> bool:
        """Whether the evaluation is left out because nobody can say who is to blame for a half that does not open.

        Raises VisitRejected where the client that wrote the half is to blame, and WorkError where the run cannot go on
        without the evaluation.
        """
        assert question.refusal is not None
        why, writer = question.refusal.why, self.remote.writer_of(x)
        question.refusal = None
        if not x.visit or writer == self.m:
            return False
        verdict = self.remote.find_verdict(x, self.m)
        self.remote.check_verdict(verdict, x, why)
        if verdict is Verdict.OPENED:
            return False
        if keep or self.remote.policy.away != "skip":
            what = f"{name_of(self.m)} cannot open the half of visit {x.visit}"
            raise WorkError(f"{what}; {self.remote.describe_dispute(writer)}", value=why.rstrip("."))
        return True

    def _find_error(self, score: messages.Score) -> str | None:
        server_visits = self.remote.server_visits
        return find_score_error(score, server_visits.classes, can_be_negative=":" in server_visits.spec.model.loss)

    def _is_in_order(self, asked: messages.Predict, question: PartyRequest) -> bool:
        """Refuse slices that are not full, except the last one: short ones would take for ever."""
        if asked.k == 0:
            self.last_slice = None
        if self.last_slice is not None and asked.k > self.last_slice:
            question.cancel("a slice of the test set that is not the last is too short")
            return False
        if len(asked.h) < SLICE:
            self.last_slice = asked.k
        return True

    def _above(self, out: Any, asked: messages.Predict, question: PartyRequest) -> None:
        if numbers(out):
            question.send(messages.Output(asked.fence, asked.k, out))
        else:
            question.cancel("what comes out above the cut are no numbers")

    def _too_late(self, question: PartyRequest) -> bool:
        """Whether nobody waits for the evaluator any longer; who was away once is not waited for until it comes."""
        policy, waited = self.remote.policy, time.monotonic() - question.since
        late = policy.away == "skip" and (waited > policy.lease or question.failures > policy.retries)
        if late:
            self.remote.strike_absent(self.m, question.why or "no answer", round=self.r)
        if late and self.m not in self.hub.here():
            self.remote.absent[self.m] = "the evaluator has not come back"
        return late or self.remote.get_absence_reason(self.m) is not None

    def _begin(self, link: int, x: Sealed, top: bytes) -> int:
        fence, blob = self.remote.journal.fences.next(), x.bytes()
        look = messages.Look(
            fence, self.r, len(blob), tensor_transfer.sha256(blob + top), x.visit, x.fence, top_bytes=len(top)
        )
        self.hub.send(link, look, *tensor_transfer.chunks(fence, blob + top))
        return fence
