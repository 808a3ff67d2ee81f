"""The engines at both ends of a connection: what client_visit and server_visit need of them.

Everything here is numpy, so that clients of the fast engine run without torch. backend_torch and backend_fast implement
`ClientEngine`, `ServerEngine` and `TestSet`. The halves of a visit are those of engine.base, on the arrays of the wire:
images with channels last, (n, H, W, C).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from importlib import import_module
from threading import RLock
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from splitrelay.algorithms.base import Visit
from splitrelay.data.augment import Augmentation
from splitrelay.data.images import Samples
from splitrelay.engine.base import ClientHalf, LocalServerHalf
from splitrelay.kernels.builtin_models import BUILTIN_MODELS
from splitrelay.network import tensor_transfer
from splitrelay.network.messages import Terms
from splitrelay.objectives.batches import Batches
from splitrelay.runs.spec import Spec
from splitrelay.tensor_types import TensorType

Vector = npt.NDArray[Any]
Labels = npt.NDArray[Any]
Inputs = tuple[TensorType, ...] | tuple[int, ...]  # the types of all inputs, or (C, H, W) of images


@dataclass(frozen=True)
class Shape:
    """The sizes of a spec's messages."""

    cut: int  # layers of the client
    boundary: int  # numbers of the client half
    size: int  # numbers of x
    h: tuple[int, ...]  # smashed data of one sample on the wire: images with channels last
    norms: int  # tensors of the server half


@dataclass(frozen=True)
class TestScore:
    """The result of an evaluation at the evaluator: as evaluation.Score, which needs torch."""

    loss: float
    accuracy: float
    per_class: tuple[float, ...] = ()
    metrics: tuple[float, ...] = ()  # in the order of the spec


class ClientEngine(Protocol):
    """The engine of a client."""

    shape: Shape
    has_buffers: bool  # whether the client half has numbers that are not trained, such as batch norm's

    def begin(self, visit: Visit[Vector]) -> ClientHalf[Vector, Labels]:
        """Start a visit of the client half."""
        ...

    def get_x(self, visit: Visit[Vector]) -> Vector:
        """Return the client half after a visit. Raise Diverged if it is not finite."""
        ...

    def train_whole(self, visit: Visit[Vector]) -> tuple[Vector, float]:
        """Take K steps of the whole model; return x and the mean loss."""
        ...

    def compute_x0(self) -> Vector:
        """Return the client half before the first visit, drawn from the seed."""
        ...


class ServerEngine(Protocol):
    """The engine of the server half, for one visit at a time."""

    def begin(self, visit: Visit[Vector]) -> LocalServerHalf[Vector, Labels]:
        """Start a visit. Its updates wait until the reply was sent (LocalServerHalf.apply_early)."""
        ...

    def get_x(self) -> Vector:
        """Return a copy of the server half as it is now."""
        ...

    def predict(self, x: Vector, h: Vector) -> Vector:
        """Return the outputs of the server half x for smashed data, as in evaluation."""
        ...


class TestSet(Protocol):
    """A test set at the evaluator."""

    def compute_smashed(self, x: Vector) -> Iterator[Vector]:
        """Yield the smashed data of the test set, slice by slice, for the client half x."""
        ...

    def compute_score(self, outputs: Sequence[Vector]) -> TestScore:
        """Compare the outputs of the server half with the targets."""
        ...


@dataclass(frozen=True)
class ClientContext:
    """The spec, the server's terms and the samples of one client."""

    m: int
    spec: Spec
    terms: Terms
    images: Samples
    pinned_plan: str = ""  # the layers of a model that is not built in, if the client's operator has accepted them
    device: str = "cpu"  # the torch device of the reference engine; the fast engine needs the CPU

    @property
    def holdings(self) -> list[npt.NDArray[np.int64]]:
        """The positions of this client's images. The lists of the other clients are empty."""
        return [np.arange(0)] * self.m + [np.arange(len(self.images))]

    @property
    def batches(self) -> Batches:
        """How batches are drawn."""
        optimiser = self.spec.optimiser
        return Batches(optimiser.batch, optimiser.draw, optimiser.drop_last)

    @property
    def augmentation(self) -> Augmentation | None:
        """How training images are changed, or None."""
        wanted = self.spec.data.augment and (self.terms.pad or self.terms.flip)
        return Augmentation(self.terms.pad, self.terms.flip) if wanted else None


BACKENDS = {"reference": "backend_torch", "fast": "backend_fast"}  # engine: module of deploy/
# CPython before 3.11.8 may fail if two threads parse source code (gh-106905), as imports and numpy.load do. The clients
# of one program are threads, so they do both under this lock.
PARSING = RLock()
SEALING = 4096  # bytes by which a sealed half may be longer than the half, without the last visit of each client


def compute_half_size(spec: Spec, shape: Shape) -> int:
    """Return the bytes of the longest half of a spec, sealed or not."""
    numbers = shape.size if spec.placement == "whole" else shape.boundary
    return tensor_transfer.compute_packed_size({"x": numbers}, spec.model.dtype) + SEALING + 16 * spec.partition.M


def import_backend(name: str) -> Any:
    """Import a module of deploy/ when it is first needed, one thread at a time.

    Torch parses source code while it is imported (see PARSING).
    """
    with PARSING:
        return import_module(f"splitrelay.deploy.{name}")


def get_backend(engine: str) -> Any:
    """Return the backend module of an engine. Only the module of the reference engine imports torch."""
    return import_backend(BACKENDS[engine])


def derive_client_shape(spec: Spec, images: Inputs, classes: int, pinned: str = "") -> Shape:
    """Return the sizes of a spec's messages at a client, which takes the inputs and the outputs from the server.

    The sizes of a built-in model are computed without its layers: nobody may have agreed yet to build them, and the
    server could ask for layers of any size. `pinned` are the agreed layers of a model that is not built in.
    """
    backend = get_backend("fast" if spec.model.name in BUILTIN_MODELS else spec.engine)
    with getattr(backend, "BUILDING", nullcontext()):
        shape: Shape = backend.compute_shape(spec, images, classes, pinned)
    return shape


def build_client_engine(context: ClientContext) -> ClientEngine:
    """Return the client's engine that the spec names."""
    build: Callable[[ClientContext], ClientEngine] = get_backend(context.spec.engine).Client
    return build(context)
