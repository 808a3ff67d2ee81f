"""What both ends can tell from a spec before anything is sent: numbers only, so that clients can do without torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from threading import RLock
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from splitrelay.algorithms.base import Step, Visit
from splitrelay.data.augment import Augmentation
from splitrelay.data.images import ImageSet
from splitrelay.network import messages, tensor_transfer
from splitrelay.network.messages import Terms
from splitrelay.objectives.batches import Batches
from splitrelay.runs.spec import Spec

Vector = npt.NDArray[Any]
Labels = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Shape:
    """The sizes of a spec's messages."""

    cut: int  # layers of the client
    boundary: int  # numbers of the client's half
    size: int  # numbers of x
    h: tuple[int, ...]  # smashed data of one sample, as the wire has it: images channels last
    norms: int  # tensors of the server's half


@dataclass(frozen=True)
class Tally:
    """The sum of losses over a test set; right answers and images by class."""

    loss: float
    right: list[int]
    seen: list[int]


class Looking(Protocol):
    """A test set at the evaluator, with whichever engine the spec names."""

    def through(self, bottom: Vector) -> Iterator[Vector]:
        """Smashed data, slice by slice."""
        ...

    def tally(self, outputs: Sequence[Vector]) -> Tally:
        """What the server's half has made of them."""
        ...


class Asked(Protocol):
    """The server's half during a visit, as arrays on a wire: what a client's engine calls."""

    def step(
        self, k: int, h: Vector, labels: Labels, norm2: float, /, meanwhile: Callable[[], None] | None = None
    ) -> messages.Reply:
        """Smashed data up, the gradient at the cut down; `meanwhile` is done while it is on its way."""
        ...

    def finish(self, norm2: float, /) -> None:
        """The last step is closed."""
        ...


class Below(Protocol):
    """A client's engine: its part of a visit."""

    shape: Shape

    def cut(self, visit: Visit[Vector], top: Asked) -> Vector:
        """K steps of the client's half against the server's; the half after them."""
        ...

    def whole(self, visit: Visit[Vector]) -> tuple[Vector, float]:
        """K steps of the whole model; x after them, and their mean loss."""
        ...

    def x0(self) -> Vector:
        """The client's half before the first visit, drawn from the seed."""
        ...


class Above(Protocol):
    """A server's engine: its half during one visit."""

    def step(self, k: int, h: Vector, labels: Labels, norm2: float) -> tuple[Vector, tuple[float, ...], float]:
        """The gradient at the cut, the squared norms of the server's tensors, the loss."""
        ...

    def settle(self) -> None:
        """Apply the step that waits, where nothing that is still to come can change it."""
        ...

    def finish(self, norm2: float) -> None:
        """Apply the step that waits."""
        ...

    def x(self) -> Vector:
        """The server's half as it stands."""
        ...


def by_itself(step: Step[Any]) -> bool:
    """Whether a half may take its step before it knows the other half's part of the norm."""
    return step.clip is None or step.per_half


@dataclass(frozen=True)
class Outfit:
    """What a client has to train with."""

    m: int
    spec: Spec
    terms: Terms
    images: ImageSet
    pinned_plan: str = ""  # the layers of a model that is not built in, where the client's operator has agreed to them

    @property
    def holdings(self) -> list[npt.NDArray[np.int64]]:
        """Batches are positions in the client's own list; nobody else's is here."""
        return [np.arange(0)] * self.m + [np.arange(len(self.images))]

    @property
    def batches(self) -> Batches:
        """How steps are drawn."""
        return Batches(self.spec.optimiser.batch, self.spec.optimiser.draw)

    @property
    def augmentation(self) -> Augmentation | None:
        """What training may do to an image."""
        wanted = self.spec.data.augment and (self.terms.pad or self.terms.flip)
        return Augmentation(self.terms.pad, self.terms.flip) if wanted else None


BACKENDS = {"reference": "backend_torch", "fast": "backend_fast"}  # engine: module of deploy/
IMPORTING = RLock()
SEALING = 4096  # bytes that a sealed half may be longer than the half, beside the last visit of each client


def half_bytes(spec: Spec, shape: Shape) -> int:
    """What the longest half of a spec takes, sealed or not."""
    numbers = shape.size if spec.placement == "whole" else shape.boundary
    return tensor_transfer.size_of({"x": numbers}, spec.model.dtype) + SEALING + 16 * spec.partition.M


def import_backend(name: str) -> Any:
    """Import a module of deploy/ when it is first needed, one thread at a time.

    Torch parses source while it is imported, and CPython before 3.11.8 may fall where two threads do so (gh-106905).
    """
    with IMPORTING:
        return import_module(f"splitrelay.deploy.{name}")


def engine_backend(engine: str) -> Any:
    """Return the backend module of an engine. Only the reference engine's module imports torch."""
    return import_backend(BACKENDS[engine])


def below(outfit: Outfit) -> Below:
    """The client's engine that the spec names."""
    make: Callable[[Outfit], Below] = engine_backend(outfit.spec.engine).Client
    return make(outfit)
