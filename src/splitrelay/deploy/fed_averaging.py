"""A fed server of its own: the clients' halves are averaged there, and pass the main server sealed.

An algorithm adds and divides x as always. The main server does so with its own half at once, and writes down what is to
become of the sealed ones: a recipe, in the order in which it was asked, which the fed server follows on them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch

from splitrelay.algorithms.base import Outcome, Visit
from splitrelay.deploy.evaluation_requests import PartyRequest
from splitrelay.deploy.half_disputes import SealedClients, Verdict, key_of
from splitrelay.deploy.sealed_state import SealedState, read_sealed_half
from splitrelay.errors import InputError, WorkError
from splitrelay.network import tensor_transfer
from splitrelay.network.codec import BadMessage
from splitrelay.network.connection_handler import FED_SERVER_NUMBER
from splitrelay.network.messages import Commit, Deposit, EvaluationRequest, Fail
from splitrelay.runs.spec import Spec

ALGORITHMS = ("fedavg", "splitfed-v2", "sflg")


def refuse_unfit(spec: Spec) -> None:
    """A fed server averages halves; where nobody does, or whole models are, there is nothing for it."""
    if spec.route != "centralized" or spec.placement != "cut" or spec.algorithm not in ALGORITHMS:
        value = f"{spec.algorithm}, placement={spec.placement}, route={spec.route}"
        limit = f"{', '.join(ALGORITHMS)} with placement=cut, route=centralized"
        raise InputError("a fed server averages the clients' halves of a cut model", value=value, limit=limit)


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
        """How it is made: halves, and what is done with the last one or two of them."""
        return (self,)

    def over(self, top: torch.Tensor) -> SealedParams:
        """The same half of the clients' under another half of the server's."""
        return SealedParams(self.blob, top, self.visit, self.fence)


class DeferredAverage(SealedParams):
    """A mean, or another combination, that the fed server has not been asked for yet."""

    def __init__(self, top: torch.Tensor, made: tuple[Any, ...], recipe: AveragingPlan | None = None) -> None:
        leaves = [step for step in made if isinstance(step, SealedParams)]
        visit, fence = max(leaf.visit for leaf in leaves) + 1, max(leaf.fence for leaf in leaves)
        super().__init__(torch.zeros(0, dtype=torch.uint8), top, visit, fence)
        self.recipe = recipe or AveragingPlan(made, visit, fence)

    def steps(self) -> tuple[Any, ...]:
        return self.recipe.steps if self.recipe.found is None else (self.recipe.found.over(self.top),)

    def over(self, top: torch.Tensor) -> SealedParams:
        return DeferredAverage(top, self.recipe.steps, self.recipe)


@dataclass
class AveragingPlan:
    """Steps in postfix order; what the fed server made of them, once it has."""

    steps: tuple[Any, ...]
    visit: int
    fence: int
    found: SealedParams | None = None

    def leaves(self) -> list[SealedParams]:
        """The halves that go in."""
        return [step for step in self.steps if isinstance(step, SealedParams)]

    def document(self) -> str:
        """For the fed server: each half by length, visit and fence, and what is done with them."""
        into = [[len(leaf.bytes()), leaf.visit, leaf.fence] for leaf in self.leaves()]
        done = ["half" if isinstance(step, SealedParams) else step for step in self.steps]
        return json.dumps({"halves": into, "steps": done})

    def name(self) -> str:
        """Of these very halves, combined in this way."""
        return tensor_transfer.compute_sha256(
            b"".join([self.document().encode(), *(leaf.bytes() for leaf in self.leaves())])
        ).hex()


class SealedCut:
    """Where x is cut for algorithms that treat its halves differently: one of them is sealed."""

    def halves(self, x: SealedParams, /) -> tuple[SealedParams, torch.Tensor]:
        """The clients' half, over nothing, and the server's."""
        return x.over(x.top[:0]), x.top

    def join(self, bottom: SealedParams, top: torch.Tensor, /) -> SealedParams:
        """Both."""
        return bottom.over(top)


class FedServerHandover(SealedClients):
    """Clients whose halves only a fed server reads."""

    is_chain = False  # all visits of a round begin from what the fed server made
    r = 0  # the round of the visits before

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.made: dict[tuple[int, int], tuple[int, str]] = {}  # by the fed server: round, name

    def writer_of(self, x: Any) -> int | None:
        """Return the client that left this half; where none did, the fed server."""
        writer = super().writer_of(x)
        return FED_SERVER_NUMBER if writer is None else writer

    def reject(self, x: Any, why: str, *, strike: bool = True) -> None:
        """Reject the visit that left the half of x. Always raises; WorkError where the fed server made it."""
        if key_of(x) in self.writers:
            super().reject(x, why, strike=strike)
        if key_of(x) in self.made:
            self.journal.discard_made(*self.made[key_of(x)])
        hint = "Repair the fed server and start it again; then the same command goes on from here."
        raise WorkError("nobody can open the half that the fed server made", value=why.rstrip("."), hint=hint)

    def run_all(self, visits: Iterable[Visit[Any]], /) -> Iterator[Outcome[Any]]:
        """Whatever they start from is made first."""
        asked = [replace(visit, x=self.whole(visit.x)) for visit in visits]
        self.r = max((visit.r for visit in asked), default=self.r)
        return super().run_all(asked)

    def whole(self, x: Any) -> Any:
        """x with the half that the fed server makes, if it is a combination."""
        if not isinstance(x, DeferredAverage):
            return x
        if x.recipe.found is None:
            x.recipe.found = self._request_average(x.recipe)
        x.fill(x.recipe.found)
        return x.recipe.found.over(x.top)

    def _request_average(self, recipe: AveragingPlan) -> SealedParams:
        """What the fed server makes of it; written down before it hears so, as it makes nothing twice."""
        name = recipe.name()
        made = self.journal.remembered(self.r, name)
        self.made[recipe.visit, recipe.fence] = self.r, name
        if made is not None:
            with suppress(BadMessage):  # else it is damaged, and asked for again
                return self._read_half(made, recipe)
        self.question = question = PartyRequest(self, FED_SERVER_NUMBER, lambda link: self._ask(link, recipe))
        try:
            return self._await_average(question, recipe, name)
        finally:
            self.question = None

    def _await_average(self, question: PartyRequest, recipe: AveragingPlan, name: str) -> SealedParams:
        asked = time.monotonic()
        while True:
            word = question.next()
            if isinstance(word, Deposit):
                try:
                    found = self._read_half(question.half, recipe)
                except BadMessage as error:
                    question.cancel(str(error))
                else:
                    self.journal.remember(self.r, name, question.half)
                    question.send(Commit(word.fence))
                    self.journal.note("combined", halves=len(recipe.leaves()), fence=word.fence)
                    return found
            if question.refusal is not None:
                why, question.refusal = question.refusal.why, None
                self._check_halves(recipe, why)
            elif question.unable and self.policy.away == "skip" and asked + self.policy.lease < time.monotonic():
                asked = time.monotonic()
                self._check_halves(recipe, question.why)
            question.check_failures()

    def _check_halves(self, recipe: AveragingPlan, why: str) -> None:
        """Find the half that the fed server cannot open, and reject its visit if a client cannot open it either.

        Raises WorkError where nobody can say who is to blame. Nothing happens where only the fed server is.
        """
        for leaf in recipe.leaves():
            answer = self.ask_to_open(FED_SERVER_NUMBER, leaf, {}) if leaf.visit else None
            if not isinstance(answer, Fail):
                continue
            if self.writer_of(leaf) == FED_SERVER_NUMBER and not answer.later:
                self.reject(leaf, why)
            verdict = self.find_verdict(leaf, FED_SERVER_NUMBER, later=answer.later)
            self.check_verdict(verdict, leaf, why)
            if verdict is Verdict.UNDECIDED and not answer.later:
                what = f"the fed server cannot open the half of visit {leaf.visit}"
                raise WorkError(f"{what}; {self.describe_dispute(self.writer_of(leaf))}", value=why.rstrip("."))

    def _read_half(self, half: bytes, recipe: AveragingPlan) -> SealedParams:
        return read_sealed_half(half, recipe.visit, recipe.fence, torch.zeros(0), SealedParams, self.server_visits.spec)

    def _ask(self, link: int, recipe: AveragingPlan) -> int:
        fence, blob = self.journal.fences.next(), b"".join(leaf.bytes() for leaf in recipe.leaves())
        words = EvaluationRequest(
            fence,
            0,
            len(blob),
            tensor_transfer.compute_sha256(blob),
            recipe.visit,
            recipe.fence,
            recipe=recipe.document(),
        )
        self.hub.send(link, words, *tensor_transfer.split_into_chunks(fence, blob, self.hub.limits.piece))
        return fence
