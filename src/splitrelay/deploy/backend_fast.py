"""The fast engine at both ends of a wire. Clients need no torch: the package has the layers of the built-in models."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from splitrelay import kernels
from splitrelay.algorithms.base import Step, Visit
from splitrelay.deploy.backend import Asked, Labels, Outfit, Shape, Vector, by_itself, engine_backend
from splitrelay.errors import InputError
from splitrelay.kernels.batches import drawing
from splitrelay.kernels.builtin_plans import find_cut, get_builtin_plan
from splitrelay.kernels.engine import ready
from splitrelay.kernels.local_steps import Bottom, Descent, Reply, TopHalf, descend_cut, finite, smashed
from splitrelay.kernels.network_plan import Plan
from splitrelay.kernels.workspace import Workspace
from splitrelay.runs.spec import Spec


def derive_plan(spec: Spec, images: tuple[int, int, int], classes: int, pinned: str = "") -> tuple[Plan, int]:
    """Return the layers of a spec's model and the cut, both from what this host itself has; the server has no part.

    Built-in models come with the package. The layers of another model are `pinned`, a document that the client's
    operator has agreed to, or are made by the user's own function, which needs torch.
    """
    name = spec.model.name
    if ":" not in name:
        plan = get_builtin_plan(name, images, classes)
    elif pinned:
        plan = kernels.read_plan(pinned)
    else:
        plan = _plan(spec, images, classes)
    if plan.shape != images or plan.classes != classes:
        value, limit = f"{plan.shape}, {plan.classes} classes", f"{images}, {classes} classes"
        raise InputError(f"the layers of {name} are made for other images", value=value, limit=limit)
    return plan, find_cut(plan, name, spec.model.cut)


def document_of(spec: Spec, images: tuple[int, int, int], classes: int) -> str:
    """The layers as they travel; at the server, which has torch."""
    return json.dumps(_plan(spec, images, classes).document())


def shape_from(plan: Plan, cut: int) -> Shape:
    """The sizes of a spec's messages, from the plan alone."""
    norms = sum(parameter.layer >= cut for parameter in plan.parameters)
    return Shape(cut, plan.ends[cut], plan.size, smashed(plan, cut)[0], norms)


def cpu_level() -> str:
    """What this CPU can do; the kernels' bits do not depend on it, but it is recorded."""
    return kernels.level()


def missing() -> str | None:
    """Why it cannot run here, or None."""
    return kernels.missing()


class Client:
    """The client's half, or the whole model, with the kernels."""

    def __init__(self, outfit: Outfit) -> None:
        spec = outfit.spec
        self.spec, self.seed = spec, spec.seed
        self.images, self.classes = outfit.images.shape, len(outfit.images.classes)
        self.plan, cut = derive_plan(spec, self.images, self.classes, outfit.pinned_plan)
        self.shape = shape_from(self.plan, cut)
        self.draw = drawing(outfit.holdings, outfit.batches, outfit.augmentation, spec.seed)
        self.work: Workspace | None = None
        self.engine = kernels.Whole(self.plan, outfit.images, self.draw, spec.seed)
        self.table = self.engine.table

    def cut(self, visit: Visit[Vector], top: Asked) -> Vector:
        """The same loop as in a simulation."""
        draw = self.draw(visit)
        self.work = ready(self.work, self.plan, 0, self.shape.cut, max(draw.sizes))
        descend_cut(Bottom(Descent(self.work, visit, self.seed), self.table, draw), RemoteTop(top))
        return finite(self.work.save(), visit)

    def whole(self, visit: Visit[Vector]) -> tuple[Vector, float]:
        """FedAvg's part."""
        done = self.engine.run(visit)
        return done.x, done.cost.loss

    def x0(self) -> Vector:
        """Drawn by torch, as everywhere: only the first client of a peer-to-peer run needs it."""
        torch_backend = engine_backend("reference")
        plan = torch_backend.model_spec_of(self.spec, self.images, self.classes)
        x0: Vector = torch_backend.start(plan, self.seed, torch_backend.torch.float32)
        return x0[: self.shape.boundary]


class RemoteTop:
    """The inner seam of the fast engine, over a wire."""

    def __init__(self, top: Asked) -> None:
        self.top = top

    def step(self, k: int, h: Any, labels: Any, norm2: float, /) -> Reply:
        """Images lie channels last already: only the names of the axes change."""
        reply = self.top.step(k, renamed(h, (0, 2, 3, 1)), labels.astype(np.int32), norm2)
        return Reply(renamed(reply.gradient, (0, 3, 1, 2)), reply.norms, reply.loss)

    def finish(self, norm2: float, /) -> None:
        """One number more."""
        self.top.finish(norm2)

    def predict(self, h: Any, /) -> Any:
        """Not during a visit."""
        raise InputError("the server's half cannot be asked in the middle of a visit")


class Server:
    """The server's half of one visit after another, in a workspace of its own."""

    def __init__(self, spec: Spec, images: tuple[int, int, int], classes: int, shape: Shape, batch: int) -> None:
        self.plan, self.seed = _plan(spec, images, classes), spec.seed
        self.work = Workspace(self.plan, shape.cut, len(self.plan.layers), batch, asked=True)

    def begin(self, visit: Visit[Vector]) -> Above:
        """A visit of the server's half."""
        return Above(Prompt(Descent(self.work, visit, self.seed), later=True))

    def predict(self, x: Vector, h: Vector) -> Vector:
        """What comes out above the cut, as in evaluation."""
        still: Step[Vector] = Step(0.0)
        top = TopHalf(Descent(self.work, Visit(0, 0, 0, x, still, 1), self.seed))
        return top.predict(renamed(h, (0, 3, 1, 2)))


class Prompt(TopHalf):
    """The server's half, which answers first, and waits for the client's part of the norm only where it needs it."""

    def settle(self) -> None:
        """Apply the step that waits."""
        if by_itself(self.descent.step):
            self._apply(0.0)


class Above:
    """One visit of the server's half."""

    def __init__(self, top: Prompt) -> None:
        self.top = top

    def step(self, k: int, h: Vector, labels: Labels, norm2: float) -> tuple[Vector, tuple[float, ...], float]:
        """Forward and backward."""
        reply = self.top.step(k, renamed(h, (0, 3, 1, 2)), labels.astype(np.int64), norm2)
        return renamed(reply.gradient, (0, 2, 3, 1)), tuple(reply.norms), reply.loss

    def settle(self) -> None:
        """Apply the step that waits, if it can be."""
        self.top.settle()

    def finish(self, norm2: float) -> None:
        """Apply the step that waits."""
        self.top.finish(norm2)

    def x(self) -> Vector:
        """The half as it stands."""
        return self.top.descent.work.save()[0]


def renamed(array: Vector, axes: tuple[int, ...]) -> Vector:
    """The axes of images in another order; vectors have only one."""
    return array.transpose(axes) if array.ndim == 4 else array


def _plan(spec: Spec, images: tuple[int, int, int], classes: int) -> Plan:
    plan = engine_backend("reference").model_spec_of(spec, images, classes)
    return kernels.plan_of(plan.net(), plan.input_shape)
