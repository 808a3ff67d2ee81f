"""The server's side of a run with a fed server: the client halves pass the server sealed and are averaged there.

An algorithm adds and divides x as always. The main server does so with its own half at once. It records the same
operations on the sealed halves as a recipe, in the same order, and the fed server executes the recipe.
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch

from splitrelay.algorithms.base import Visit
from splitrelay.deploy.evaluation_requests import PartyRequest, send_request
from splitrelay.deploy.half_disputes import HalfDisputes, Verdict, get_half_key
from splitrelay.deploy.remote_clients import Handover, RemoteClients
from splitrelay.deploy.sealed_state import SealedState, read_sealed_half
from splitrelay.errors import InputError, WorkError
from splitrelay.network import tensor_transfer
from splitrelay.network.codec import BadMessage
from splitrelay.network.messages import Commit, Deposit, Fail
from splitrelay.network.server_connection import FED_SERVER_NUMBER
from splitrelay.runs.spec import Spec

ALGORITHMS = ("fedavg", "splitfed-v2", "sflg")


def check_fed_spec(spec: Spec) -> None:
    """Raise InputError if the spec has no client halves that a fed server could average."""
    if spec.route != "centralized" or spec.placement != "cut" or spec.algorithm not in ALGORITHMS:
        value = f"{spec.algorithm}, placement={spec.placement}, route={spec.route}"
        limit = f"{', '.join(ALGORITHMS)} with placement=cut, route=centralized"
        raise InputError("a fed server averages the clients' halves of a cut model", value=value, limit=limit)
    if spec.output == "average":
        what = "a fed server has the client halves of one round only, so nobody can average them over the rounds"
        raise InputError(what, value="output=average", limit="output=last", hint="Use output=last, or no fed server.")


class SealedParams(SealedState):
    """x where a fed server averages the clients' halves."""

    def __add__(self, other: Any) -> DeferredAverage:
        return DeferredAverage(self.top + other.top, self.steps() + other.steps() + ("+",))

    def __sub__(self, other: Any) -> DeferredAverage:
        return DeferredAverage(self.top - other.top, self.steps() + other.steps() + ("-",))

    def __rmul__(self, scalar: Any) -> DeferredAverage:
        return DeferredAverage(scalar * self.top, (*self.steps(), ("*", scalar)))

    def __truediv__(self, n: Any) -> DeferredAverage:
        return DeferredAverage(self.top / n, (*self.steps(), ("/", n)))

    def steps(self) -> tuple[Any, ...]:
        """Return the steps that make it, in postfix order: halves, and operations on the last one or two of them."""
        return (self,)

    def over(self, top: torch.Tensor) -> SealedParams:
        """Return the same client half with another server half."""
        return SealedParams(self.blob, top, self.visit, self.fence)


class DeferredAverage(SealedParams):
    """A mean, or another combination, that the fed server has not been asked for yet."""

    def __init__(self, top: torch.Tensor, made: tuple[Any, ...], plan: AveragingPlan | None = None) -> None:
        leaves = [step for step in made if isinstance(step, SealedParams)]
        visit, fence = max(leaf.visit for leaf in leaves) + 1, max(leaf.fence for leaf in leaves)
        super().__init__(torch.zeros(0, dtype=torch.uint8), top, visit, fence)
        self.plan = plan or AveragingPlan(made, visit, fence)

    def steps(self) -> tuple[Any, ...]:
        return self.plan.steps if self.plan.result is None else (self.plan.result.over(self.top),)

    def over(self, top: torch.Tensor) -> SealedParams:
        return DeferredAverage(top, self.plan.steps, self.plan)


@dataclass
class AveragingPlan:
    """Steps in postfix order; what the fed server made of them, once it has."""

    steps: tuple[Any, ...]
    visit: int
    fence: int
    result: SealedParams | None = None

    def leaves(self) -> list[SealedParams]:
        """Return the halves that are combined."""
        return [step for step in self.steps if isinstance(step, SealedParams)]

    def document(self) -> str:
        """Return the recipe for the fed server: length, visit and fence of each half, and the operations."""
        into = [[len(leaf.bytes()), leaf.visit, leaf.fence] for leaf in self.leaves()]
        done = ["half" if isinstance(step, SealedParams) else step for step in self.steps]
        return json.dumps({"halves": into, "steps": done})

    def name(self) -> str:
        """Return a name of these halves combined in this way."""
        return tensor_transfer.compute_sha256(
            b"".join([self.document().encode(), *(leaf.bytes() for leaf in self.leaves())])
        ).hex()


class SealedCut:
    """Where x is cut for algorithms that treat its halves differently: one of them is sealed."""

    def halves(self, x: SealedParams, /) -> tuple[SealedParams, torch.Tensor]:
        """Return the client half and the server half."""
        return x.over(x.top[:0]), x.top

    def join(self, bottom: SealedParams, top: torch.Tensor, /) -> SealedParams:
        """Return x from both halves."""
        return bottom.over(top)


class FedServerHandover(Handover):
    """A fed server averages the client halves. All visits of a round start from the half that it made."""

    disputes: HalfDisputes

    def __init__(self, clients: RemoteClients) -> None:
        self.clients, self.journal, self.scheduler = clients, clients.journal, clients.scheduler
        self.disputes = HalfDisputes(
            clients, is_chain=False, default_writer=FED_SERVER_NUMBER, reject_unknown=self._reject_average
        )
        self.r = 0  # the round of the last visits
        self.made: dict[tuple[int, int], tuple[int, str]] = {}  # halves of the fed server: their round and name

    def _reject_average(self, x: Any, why: str) -> None:
        """Raise WorkError because nobody can open the half that the fed server made. It is made again later."""
        if get_half_key(x) in self.made:
            self.journal.discard_made(*self.made[get_half_key(x)])
        hint = "Repair the fed server and start it again; then the same command goes on from here."
        raise WorkError("nobody can open the half that the fed server made", value=why.rstrip("."), hint=hint)

    def prepare(self, visits: list[Visit[Any]]) -> list[Visit[Any]]:
        """Return the visits with the averages that they start from."""
        completed = [replace(visit, x=self.complete(visit.x)) for visit in visits]
        self.r = max((visit.r for visit in completed), default=self.r)
        return completed

    def complete(self, x: Any) -> Any:
        """Return x. If it is a deferred average, ask the fed server for it first."""
        if not isinstance(x, DeferredAverage):
            return x
        if x.plan.result is None:
            x.plan.result = self._request_average(x.plan)
        x.fill(x.plan.result)
        return x.plan.result.over(x.top)

    def _request_average(self, plan: AveragingPlan) -> SealedParams:
        """Return the average of the fed server. The journal has it before the fed server learns that it counts."""
        name = plan.name()
        made = self.journal.load_made(self.r, name)
        self.made[plan.visit, plan.fence] = self.r, name
        if made is not None:
            with suppress(BadMessage):  # else it is damaged, and asked for again
                return self._read_half(made, plan)

        def ask(connection: int) -> int:
            halves = b"".join(leaf.bytes() for leaf in plan.leaves())
            return send_request(self.clients, connection, halves, plan.visit, plan.fence, recipe=plan.document())

        self.scheduler.question = question = PartyRequest(self.clients, FED_SERVER_NUMBER, ask)
        try:
            return self._await_average(question, plan, name)
        finally:
            self.scheduler.question = None

    def _await_average(self, question: PartyRequest, plan: AveragingPlan, name: str) -> SealedParams:
        checked_at, policy = time.monotonic(), self.clients.policy
        while True:
            answer = question.next()
            if isinstance(answer, Deposit):
                try:
                    found = self._read_half(question.half, plan)
                except BadMessage as error:
                    question.cancel(str(error))
                else:
                    self.journal.save_made(self.r, name, question.half)
                    question.send(Commit(answer.fence))
                    self.journal.note("combined", halves=len(plan.leaves()), fence=answer.fence)
                    return found
            if question.refusal is not None:
                why, question.refusal = question.refusal.why, None
                self._check_halves(plan, why)
            elif question.unable and policy.away == "skip" and checked_at + policy.lease < time.monotonic():
                checked_at = time.monotonic()
                self._check_halves(plan, question.why)
            question.check_failures()

    def _check_halves(self, plan: AveragingPlan, why: str) -> None:
        """Find the half that the fed server cannot open, and reject its visit if a client cannot open it either.

        Raises WorkError where nobody can say who is to blame. Nothing happens where only the fed server is.
        """
        for leaf in plan.leaves():
            answer = self.disputes.ask_to_open(FED_SERVER_NUMBER, leaf, {}) if leaf.visit else None
            if not isinstance(answer, Fail):
                continue
            if self.disputes.find_half_writer(leaf) == FED_SERVER_NUMBER and not answer.later:
                self.disputes.reject(leaf, why)
            verdict = self.disputes.find_verdict(leaf, FED_SERVER_NUMBER, later=answer.later)
            self.disputes.check_verdict(verdict, leaf, why)
            if verdict is Verdict.UNDECIDED and not answer.later:
                what = f"the fed server cannot open the half of visit {leaf.visit}"
                raise WorkError(
                    f"{what}; {self.disputes.describe_dispute(self.disputes.find_half_writer(leaf))}",
                    value=why.rstrip("."),
                )

    def _read_half(self, half: bytes, plan: AveragingPlan) -> SealedParams:
        return read_sealed_half(
            half, plan.visit, plan.fence, torch.zeros(0), SealedParams, self.clients.server_visits.spec
        )
