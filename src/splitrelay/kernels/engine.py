"""The fast engine behind the same promise as the reference engine: a placement runs one visit at a time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from splitrelay.algorithms.base import Cost, Done, Visit
from splitrelay.engine.byte_counting import Overheard, message, shift_message
from splitrelay.errors import InputError
from splitrelay.kernels.batches import Drawing, Pictures, Table
from splitrelay.kernels.local_steps import Bottom, Descent, TopHalf, descend, descend_cut, finite, mean_loss
from splitrelay.kernels.network_plan import Plan
from splitrelay.kernels.workspace import Floats, Workspace


class Whole:
    """Placement: the whole model at the client."""

    def __init__(self, plan: Plan, images: Pictures, draw: Drawing, seed: int) -> None:
        self.plan, self.table, self.draw, self.seed = plan, Table(images, plan), draw, seed
        self.work: Workspace | None = None

    def run(self, visit: Visit[Floats], /) -> Done[Floats]:
        """K local steps; the model travels to the client and back."""
        if visit.step.per_half:
            hint = "Use placement=cut, or clip the whole."
            raise InputError("clipping per half needs a model in halves", hint=hint)
        draw = self.draw(visit)
        self.work = ready(self.work, self.plan, 0, len(self.plan.layers), max(draw.sizes))
        losses, x = descend(Descent(self.work, visit, self.seed), self.table, draw)
        carried = message(visit.x)
        cost = Cost(carried, carried + shift_message(visit.step.shift), mean_loss(losses, visit))
        return Done(finite(x, visit), cost)


class InTwo:
    """Placement: cut after `cut` layers, both halves in this process."""

    def __init__(self, plan: Plan, images: Pictures, draw: Drawing, seed: int, cut: int) -> None:
        self.plan, self.table, self.draw, self.seed, self.cut = plan, Table(images, plan), draw, seed, cut
        self.boundary = plan.ends[cut]
        self.bottom: Workspace | None = None
        self.top: Workspace | None = None

    def run(self, visit: Visit[Floats], /) -> Done[Floats]:
        """K local steps; the client's half travels to the client and on, smashed data and gradients at every step."""
        draw, (below, above) = self.draw(visit), halved(visit, self.boundary)
        most = max(draw.sizes)
        self.bottom = ready(self.bottom, self.plan, 0, self.cut, most)
        self.top = ready(self.top, self.plan, self.cut, len(self.plan.layers), most, asked=True)
        line = Overheard(TopHalf(Descent(self.top, above, self.seed)))
        bottom = Bottom(Descent(self.bottom, below, self.seed), self.table, draw)
        loss = mean_loss(descend_cut(bottom, line), visit)
        handover = message(below.x)
        (x, good), (rest, fine) = self.bottom.save(), self.top.save()
        cost = Cost(line.up + handover, line.down + handover + shift_message(below.step.shift), loss)
        return Done(finite((np.concatenate([x, rest]), good and fine), visit), cost)


def ready(work: Workspace | None, plan: Plan, first: int, last: int, batch: int, *, asked: bool = False) -> Workspace:
    """The workspace, if it is large enough, else a larger one."""
    return work if work is not None and batch <= work.batch else Workspace(plan, first, last, batch, asked=asked)


def halved(visit: Visit[Floats], boundary: int) -> tuple[Visit[Floats], Visit[Floats]]:
    """The visit as each side sees it: x and shift cut at the same place."""
    return _part(visit, slice(None, boundary)), _part(visit, slice(boundary, None))


def _part(visit: Visit[Floats], where: slice) -> Visit[Floats]:
    step = visit.step
    if step.shift is not None:
        step = replace(step, shift=step.shift[where])
    return Visit(visit.r, visit.i, visit.m, visit.x[where], step, visit.K)
