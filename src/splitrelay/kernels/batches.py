"""What a visit sees: which images, in batches of which sizes, cropped how; and how they are drawn, by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from splitrelay.algorithms.base import Visit
from splitrelay.errors import InputError, OutOfRange
from splitrelay.kernels.ctypes_structs import ImagesC, address
from splitrelay.kernels.library import library
from splitrelay.kernels.network_plan import Plan
from splitrelay.kernels.seeded_draws import Integers, batch_sizes, positions, root
from splitrelay.randomness import Purpose, rng

LEVELS = 256  # values of a byte
LARGEST_PAD = 2**20  # pixels around an image that is cropped


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
        if self.y.ndim != 1:
            raise InputError("the labels of images", value=self.y.shape, limit="one per image")
        if self.x.shape != (len(self.y), *plan.shape) or self.levels.shape != (plan.shape[0], LEVELS):
            raise InputError("images of another shape", value=self.x.shape[1:], limit=plan.shape)
        refuse_labels(self.y, plan.classes)
        C, H, W = plan.shape
        places = (array.ctypes.data for array in (self.x, self.y, self.levels))
        self.images = ImagesC(*places, N=len(self.y), C=C, H=H, W=W)

    def __len__(self) -> int:
        return len(self.y)

    def chosen(self, draw: Draw) -> tuple[ImagesC, tuple[object, ...]]:
        """These images, and what must live as long as they are read."""
        found, at = ImagesC.from_buffer_copy(self.images), np.ascontiguousarray(draw.at, np.int64)
        if sum(draw.sizes) > len(at):
            raise IndexError("a visit names fewer images than its steps need")
        if at.ndim != 1:
            raise InputError("the images of a visit", value=at.shape, limit="one row of positions")
        found.at, found.chosen = address(at), len(at)
        if draw.crops is None:
            return found, (at,)
        corners = [np.ascontiguousarray(side, np.int64) for side in (draw.crops.top, draw.crops.left)]
        flip = np.ascontiguousarray(draw.crops.flip, np.uint8)
        if {flip.ndim, corners[0].ndim, corners[1].ndim} != {1}:
            raise InputError("the crops of a visit", limit="one per image")
        if min(len(flip), *map(len, corners)) < len(at):
            raise IndexError("a visit has fewer crops than images")
        if not 0 <= draw.crops.pad <= LARGEST_PAD:
            raise OutOfRange("the padding of crops", value=draw.crops.pad, limit=f"0 to {LARGEST_PAD} pixels")
        found.top, found.left, found.flip = corners[0].ctypes.data, corners[1].ctypes.data, flip.ctypes.data
        found.pad = draw.crops.pad
        return found, (at, corners, flip)


def refuse_labels(labels: Integers, classes: int) -> None:
    """A label is a place in the net's outputs."""
    if len(labels) and np.maximum.reduce(labels.view(np.uint64)) >= classes:  # a negative one is large there
        span = f"{int(labels.min())} to {int(labels.max())}"
        raise OutOfRange("labels outside the net's classes", value=span, limit=f"0 <= y < {classes}")


class Batches(Protocol):
    """How steps are drawn from n samples. objectives.batches.Batches is one."""

    @property
    def size(self) -> int: ...
    @property
    def draw(self) -> str: ...

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
        at, sizes = drawn(batches, holdings[visit.m], visit, seed)
        if augmentation is None:
            return Draw(at, sizes)
        generator = rng(seed, Purpose.AUGMENT, visit.r, visit.m, visit.i)
        return Draw(at, sizes, augmentation.draw(generator, len(at)))

    return draw


def drawn(batches: Batches, held: Integers, visit: Visit[Any], seed: int) -> tuple[Integers, list[int]]:
    """Which images, and how many at each step: by the kernels, or by numpy for a way to draw that they do not know."""
    if batches.draw not in ("passes", "replacement") or not len(held):
        steps = batches.positions(len(held), visit.K, rng(seed, Purpose.BATCHES, visit.r, visit.m, visit.i))
        return held[np.concatenate(steps)], [len(step) for step in steps]
    again = batches.draw == "replacement"
    sizes = batch_sizes(len(held), visit.K, batches.size, again=again)
    name = root(seed).name(visit.r, visit.m, visit.i)
    return positions(library(), name, held, sizes, batches.size, again=again), sizes
