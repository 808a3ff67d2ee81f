"""A fed server of its own: the clients' halves are averaged there, and pass the main server sealed.

An algorithm adds and divides x as always. The main server does so with its own half at once, and writes down what is to
become of the sealed ones: a recipe, in the order in which it was asked, which the fed server follows on them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from queue import Empty
from typing import Any

import torch

from splitrelay.algorithms.base import Outcome, Visit
from splitrelay.deploy.peers import Relays, Sealed, sealed_half
from splitrelay.deploy.remote import TICK, Remote
from splitrelay.errors import InputError, WorkError
from splitrelay.experiments.spec import Spec
from splitrelay.wire import halves
from splitrelay.wire.messages import Commit, Deposit, Fail, Look, fence_of
from splitrelay.wire.reception import FED
from splitrelay.wire.server import Gone, Heard

ALGORITHMS = ("fedavg", "splitfed-v2", "sflg")


def refuse_unfit(spec: Spec) -> None:
    """A fed server averages halves; where nobody does, or whole models are, there is nothing for it."""
    if spec.route != "centralized" or spec.placement != "cut" or spec.algorithm not in ALGORITHMS:
        value = f"{spec.algorithm}, placement={spec.placement}, route={spec.route}"
        limit = f"{', '.join(ALGORITHMS)} with placement=cut, route=centralized"
        raise InputError("a fed server averages the clients' halves of a cut model", value=value, limit=limit)


class Portion(Sealed):
    """x where a fed server averages the clients' halves."""

    def __add__(self, other: Any) -> Mixed:
        return Mixed(self.top + other.top, self.steps() + other.steps() + ("+",))

    def __sub__(self, other: Any) -> Mixed:
        return Mixed(self.top - other.top, self.steps() + other.steps() + ("-",))

    def __rmul__(self, scalar: Any) -> Mixed:
        return Mixed(scalar * self.top, (*self.steps(), ("*", scalar)))

    def __truediv__(self, n: Any) -> Mixed:
        return Mixed(self.top / n, (*self.steps(), ("/", n)))

    def steps(self) -> tuple[Any, ...]:
        """How it is made: halves, and what is done with the last one or two of them."""
        return (self,)

    def over(self, top: torch.Tensor) -> Portion:
        """The same half of the clients' under another half of the server's."""
        return Portion(self.blob, top, self.visit, self.fence)


class Mixed(Portion):
    """A mean, or another combination, that the fed server has not been asked for yet."""

    def __init__(self, top: torch.Tensor, made: tuple[Any, ...], recipe: Recipe | None = None) -> None:
        leaves = [step for step in made if isinstance(step, Portion)]
        visit, fence = max(leaf.visit for leaf in leaves) + 1, max(leaf.fence for leaf in leaves)
        super().__init__(torch.zeros(0, dtype=torch.uint8), top, visit, fence)
        self.recipe = recipe or Recipe(made, visit, fence)

    def steps(self) -> tuple[Any, ...]:
        return self.recipe.steps if self.recipe.found is None else (self.recipe.found.over(self.top),)

    def over(self, top: torch.Tensor) -> Portion:
        return Mixed(top, self.recipe.steps, self.recipe)


@dataclass
class Recipe:
    """Steps in postfix order; what the fed server made of them, once it has."""

    steps: tuple[Any, ...]
    visit: int
    fence: int
    found: Portion | None = None

    def leaves(self) -> list[Portion]:
        """The halves that go in."""
        return [step for step in self.steps if isinstance(step, Portion)]

    def document(self) -> str:
        """For the fed server: each half by length, visit and fence, and what is done with them."""
        into = [[len(leaf.bytes()), leaf.visit, leaf.fence] for leaf in self.leaves()]
        done = ["half" if isinstance(step, Portion) else step for step in self.steps]
        return json.dumps({"halves": into, "steps": done})


class SealedCut:
    """Where x is cut for algorithms that treat its halves differently: one of them is sealed."""

    def halves(self, x: Portion, /) -> tuple[Portion, torch.Tensor]:
        """The clients' half, over nothing, and the server's."""
        return x.over(x.top[:0]), x.top

    def join(self, bottom: Portion, top: torch.Tensor, /) -> Portion:
        """Both."""
        return bottom.over(top)


class Averages(Relays):
    """Turns of a spec with a fed server."""

    kind = Portion


class Fed(Remote):
    """Clients whose halves only a fed server reads."""

    def run(self, visit: Visit[Any], /) -> Outcome[Any]:
        """One visit."""
        return next(self.run_all([visit]))

    def run_all(self, visits: Iterable[Visit[Any]], /) -> Iterator[Outcome[Any]]:
        """Whatever they start from is made first."""
        return super().run_all([replace(visit, x=self.whole(visit.x)) for visit in visits])

    def whole(self, x: Any) -> Any:
        """x with the half that the fed server makes, if it is a combination."""
        if not isinstance(x, Mixed):
            return x
        if x.recipe.found is None:
            x.recipe.found = self._combined(x.recipe)
        x.fill(x.recipe.found)
        return x.recipe.found.over(x.top)

    def _combined(self, recipe: Recipe) -> Portion:
        link, fence = None, 0
        while True:
            if self.stop.is_set():
                raise KeyboardInterrupt
            here = self.hub.here().get(FED)
            if here is not None and here != link:
                link, fence = here, self._ask(here, recipe)
            try:
                event = self.hub.inbox.get(timeout=TICK)
            except Empty:
                continue
            self.overhear(event)
            if isinstance(event, Gone) and event.link == link:
                link = None
            if not isinstance(event, Heard) or event.link != link or fence_of(event.message) != fence:
                continue
            if isinstance(event.message, Fail):
                raise WorkError("the fed server cannot average", value=event.message.why)
            if isinstance(event.message, Deposit):
                found = sealed_half(event.half, recipe.visit, recipe.fence, torch.zeros(0), Portion)
                self.hub.send(event.link, Commit(fence))
                self.journal.note("combined", halves=len(recipe.leaves()), fence=fence)
                return found

    def _ask(self, link: int, recipe: Recipe) -> int:
        fence, blob = self.journal.fences.next(), b"".join(leaf.bytes() for leaf in recipe.leaves())
        words = Look(fence, 0, len(blob), halves.sha256(blob), recipe.visit, recipe.fence, recipe=recipe.document())
        self.hub.send(link, words, *halves.chunks(fence, blob))
        return fence
