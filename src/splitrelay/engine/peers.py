"""Peer to peer, in one process: clients hand their half to the next one, and the server never sees it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NoReturn

import torch

from splitrelay.algorithms.base import Done, Outcome, Visit
from splitrelay.engine.torch_engine import InTwo
from splitrelay.errors import InputError


@dataclass(frozen=True, eq=False)
class Relayed:
    """x as the server has it: where the client half lies, and its own half. It can be passed on, nothing else."""

    holder: int  # the visit after which a client holds the half; 0: the first client makes x_c^0
    top: torch.Tensor

    def _refuse(self, _: object) -> NoReturn:
        hint = "Use route=centralized, or an algorithm that only passes x on, such as ssl."
        raise InputError(
            "peer to peer the server does not hold the clients' halves, and cannot average them", hint=hint
        )

    __add__ = __sub__ = __rmul__ = __truediv__ = _refuse


class Peers:
    """All clients of a cut model; each finished half lies with its client until the next visit asks for it."""

    def __init__(self, engine: InTwo, x0: torch.Tensor) -> None:
        self.engine = engine
        self.held = {0: x0[: engine.boundary]}

    def start(self, x0: torch.Tensor) -> Relayed:
        """x^0 as the server has it."""
        return Relayed(0, x0[self.engine.boundary :])

    def run(self, visit: Visit[Relayed], /) -> Outcome[Relayed]:
        """The next client takes over the half, trains, and keeps it."""
        bottom = self.held[visit.x.holder]
        done = self.engine.run(replace(visit, x=torch.cat([bottom, visit.x.top])))  # type: ignore[arg-type]
        del self.held[visit.x.holder]  # handed on, now that the visit is done: one that fails can be made again
        handle = visit.x.holder + 1
        self.held[handle] = done.x[: self.engine.boundary]
        return Done(Relayed(handle, done.x[self.engine.boundary :]), done.cost)

    def run_all(self, visits: Iterable[Visit[Relayed]], /) -> Iterator[Outcome[Relayed]]:
        """In parallel nothing can be handed on."""
        found = list(visits)
        if len(found) > 1:
            found[0].x._refuse(found[1].x)
        return map(self.run, found)

    def whole(self, x: Relayed) -> torch.Tensor:
        """The joined model, as only a client can have it."""
        return torch.cat([self.held[x.holder], x.top])
