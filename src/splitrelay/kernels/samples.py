"""What a visit sees: which images, in batches of which sizes, cropped how; and its dropout masks, by name."""

from __future__ import annotations

import ctypes as c
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from splitrelay.algorithms.base import Visit
from splitrelay.errors import InputError, OutOfRange
from splitrelay.kernels.plan import Plan
from splitrelay.kernels.structures import ImagesC
from splitrelay.randomness import Purpose, rng

Integers = npt.NDArray[np.int64]
LEVELS = 256  # values of a byte


class Pictures(Protocol):
    """A set of images: bytes (N, C, H, W), labels, and what each byte becomes. data.images.ImageSet is one."""

    @property
    def x(self) -> npt.NDArray[np.uint8]: ...
    @property
    def y(self) -> Integers: ...
    @property
    def levels(self) -> npt.NDArray[np.float32]: ...


class Crops(Protocol):
    """One crop per image of the visit. data.augment.Crops is one."""

    @property
    def pad(self) -> int: ...
    @property
    def top(self) -> Integers: ...
    @property
    def left(self) -> Integers: ...
    @property
    def flip(self) -> npt.NDArray[np.bool_]: ...


@dataclass(frozen=True, eq=False)
class Draw:
    """The images of a visit, in order, the size of each step's batch, and the crops."""

    at: Integers
    sizes: Sequence[int]
    crops: Crops | None = None


Drawing = Callable[[Visit[Any]], Draw]


class Table:
    """A set of images as the kernels read it; arrays are kept alive here. What does not fit the net is refused."""

    def __init__(self, images: Pictures, plan: Plan) -> None:
        self.x, self.y = np.ascontiguousarray(images.x, np.uint8), np.ascontiguousarray(images.y, np.int64)
        self.levels = np.ascontiguousarray(images.levels, np.float32)
        if self.x.shape != (len(self.y), *plan.shape) or self.levels.shape != (plan.shape[0], LEVELS):
            raise InputError("images of another shape", value=self.x.shape[1:], limit=plan.shape)
        refuse_labels(self.y, plan.classes)
        self.places = tuple(array.ctypes.data for array in (self.x, self.y, self.levels))

    def __len__(self) -> int:
        return len(self.y)

    def all(self) -> ImagesC:
        """Every image, in order."""
        C, H, W = self.x.shape[1:]
        return ImagesC(*self.places, N=len(self.y), C=C, H=H, W=W)

    def chosen(self, draw: Draw) -> tuple[ImagesC, tuple[object, ...]]:
        """These images, and what must live as long as they are read."""
        found, at = self.all(), np.ascontiguousarray(draw.at, np.int64)
        if sum(draw.sizes) > len(at):
            raise IndexError("a visit names fewer images than its steps need")
        found.at = at.ctypes.data
        if draw.crops is None:
            return found, (at,)
        corners = [np.ascontiguousarray(side, np.int64) for side in (draw.crops.top, draw.crops.left)]
        flip = np.ascontiguousarray(draw.crops.flip, np.uint8)
        if min(len(flip), *map(len, corners)) < len(at):
            raise IndexError("a visit has fewer crops than images")
        found.top, found.left, found.flip = corners[0].ctypes.data, corners[1].ctypes.data, flip.ctypes.data
        found.pad = draw.crops.pad
        return found, (at, corners, flip)


def refuse_labels(labels: Integers, classes: int) -> None:
    """A label is a place in the net's outputs."""
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        span = f"{int(labels.min())} to {int(labels.max())}"
        raise OutOfRange("labels outside the net's classes", value=span, limit=f"0 <= y < {classes}")


class Masks:
    """The uniform numbers of every dropout layer of a stretch, step by step: the reference engine draws the same."""

    def __init__(self, plan: Plan, layers: Sequence[int], visit: Visit[Any], seed: int) -> None:
        self.plan, self.layers, self.name, self.seed = plan, layers, (visit.r, visit.m, visit.i), seed

    def step(self, k: int, n: int) -> list[npt.NDArray[np.float32]]:
        """Those of step k for n images."""
        shapes = [(n, prod(self.plan.shapes[j])) for j in self.layers]
        return [
            rng(self.seed, Purpose.DROPOUT, *self.name, k, j).random(shape, dtype=np.float32)
            for j, shape in zip(self.layers, shapes, strict=True)
        ]


def addresses(arrays: Sequence[npt.NDArray[Any]]) -> Any:
    """Pointers to arrays, as C has them; the arrays must be kept."""
    return (c.c_void_p * max(1, len(arrays)))(*[array.ctypes.data for array in arrays])


class Batches(Protocol):
    """How steps are drawn from n samples. objectives.batches.Batches is one."""

    def positions(self, n: int, K: int, generator: np.random.Generator) -> Sequence[Integers]:
        """K batches."""
        ...


class Augmentation(Protocol):
    """How images are changed. data.augment.Augmentation is one."""

    def draw(self, generator: np.random.Generator, n: int) -> Crops:
        """The crops of n images."""
        ...


def drawing(holdings: Sequence[Integers], batches: Batches, augmentation: Augmentation | None, seed: int) -> Drawing:
    """What client m sees in a visit, by name: the same as on the reference engine, on any host."""

    def draw(visit: Visit[Any]) -> Draw:
        held, name = holdings[visit.m], (visit.r, visit.m, visit.i)
        steps = batches.positions(len(held), visit.K, rng(seed, Purpose.BATCHES, *name))
        at = held[np.concatenate(steps)]
        crops = None if augmentation is None else augmentation.draw(rng(seed, Purpose.AUGMENT, *name), len(at))
        return Draw(at, [len(step) for step in steps], crops)

    return draw
