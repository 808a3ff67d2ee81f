"""The images of a visit: their positions, the sizes of the batches, the crops, and how the kernels draw them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from splitrelay.algorithms.base import Visit
from splitrelay.data.augment import Augmentation, Crops
from splitrelay.errors import InputError, OutOfRange
from splitrelay.kernels.ctypes_structs import ImagesC, Integers, address, check_labels
from splitrelay.kernels.library import load_library
from splitrelay.kernels.network_plan import Plan
from splitrelay.kernels.seeded_draws import draw_permutation, draw_positions, get_batch_sizes, get_root
from splitrelay.objectives.batches import Batches
from splitrelay.randomness import Purpose, rng

LEVELS = 256  # values of a byte
LARGEST_PAD = 2**20  # pixels around an image that is cropped


class Images(Protocol):
    """A set of images: bytes (N, C, H, W), labels, and the number that each byte stands for.

    data.images.ImageSet is one. Images that torch holds are others, on the same memory. If x has float32 numbers, they
    are used as they are, and the levels are not.
    """

    @property
    def x(self) -> npt.NDArray[Any]: ...
    @property
    def y(self) -> Integers: ...
    @property
    def levels(self) -> npt.NDArray[np.float32]: ...


@dataclass(frozen=True, eq=False)
class Draw:
    """The positions of a visit's images, in order, the size of each step's batch, and the crops."""

    at: Integers
    sizes: Sequence[int]
    crops: Crops | None = None


DrawVisit = Callable[[Visit[Any]], Draw]


class Table:
    """A set of images as the kernels read it. It keeps the arrays alive and checks that they fit the net."""

    def __init__(self, images: Images, plan: Plan) -> None:
        self.has_features = images.x.dtype == np.float32
        self.x = np.ascontiguousarray(images.x, np.float32 if self.has_features else np.uint8)
        self.y = np.ascontiguousarray(images.y, np.int64)
        self.levels = np.ascontiguousarray(images.levels, np.float32)
        if self.y.ndim != 1:
            raise InputError("the labels of images", value=self.y.shape, limit="one per image")
        is_known = self.has_features or self.levels.shape == (plan.shape[0], LEVELS)
        if self.x.shape != (len(self.y), *plan.shape) or not is_known:
            raise InputError("images of another shape", value=self.x.shape[1:], limit=plan.shape)
        check_labels(self.y, plan.classes)
        C, H, W = plan.shape
        places = (array.ctypes.data for array in (self.x, self.y, self.levels))
        self.images = ImagesC(*places, N=len(self.y), C=C, H=H, W=W)
        if self.has_features:
            self.images.features = self.x.ctypes.data

    def load(self, first: int, last: int) -> npt.NDArray[np.float32]:
        """Return the numbers of images first, ..., last - 1, with the channels last."""
        x = self.x[first:last]
        numbers = x if self.has_features else self.levels[np.arange(x.shape[1])[:, None, None], x]
        return np.ascontiguousarray(numbers.transpose(0, 2, 3, 1), np.float32)

    def __len__(self) -> int:
        return len(self.y)

    def choose(self, draw: Draw) -> tuple[ImagesC, tuple[object, ...]]:
        """Return the structure of these images, and the arrays that it points to: keep them while it is used."""
        chosen, at = ImagesC.from_buffer_copy(self.images), np.ascontiguousarray(draw.at, np.int64)
        if sum(draw.sizes) > len(at):
            raise IndexError("a visit names fewer images than its steps need")
        if at.ndim != 1:
            raise InputError("the images of a visit", value=at.shape, limit="one row of positions")
        chosen.at, chosen.chosen = address(at), len(at)
        if draw.crops is None:
            return chosen, (at,)
        corners = [np.ascontiguousarray(side, np.int64) for side in (draw.crops.top, draw.crops.left)]
        flip = np.ascontiguousarray(draw.crops.flip, np.uint8)
        if {flip.ndim, corners[0].ndim, corners[1].ndim} != {1}:
            raise InputError("the crops of a visit", limit="one per image")
        if min(len(flip), *map(len, corners)) < len(at):
            raise IndexError("a visit has fewer crops than images")
        if not 0 <= draw.crops.pad <= LARGEST_PAD:
            raise OutOfRange("the padding of crops", value=draw.crops.pad, limit=f"0 to {LARGEST_PAD} pixels")
        chosen.top, chosen.left, chosen.flip = corners[0].ctypes.data, corners[1].ctypes.data, flip.ctypes.data
        chosen.pad = draw.crops.pad
        return chosen, (at, corners, flip)


def make_draw(
    holdings: Sequence[Integers], batches: Batches, augmentation: Augmentation | None, seed: int
) -> DrawVisit:
    """Return a function that draws the images of a visit by name: the same as the reference engine, on any host."""

    def draw(visit: Visit[Any]) -> Draw:
        at, sizes = draw_images(batches, holdings[visit.m], visit, seed)
        if augmentation is None:
            return Draw(at, sizes)
        generator = rng(seed, Purpose.AUGMENT, visit.r, visit.m, visit.i)
        return Draw(at, sizes, augmentation.draw(generator, len(at)))

    return draw


def draw_images(batches: Batches, held: Integers, visit: Visit[Any], seed: int) -> tuple[Integers, list[int]]:
    """Return the images of a visit and the size of each batch. numpy draws where the kernels do not know the way."""
    if batches.draw not in ("passes", "replacement") or batches.drop_last or not len(held):
        steps = batches.positions(len(held), visit.K, rng(seed, Purpose.BATCHES, visit.r, visit.m, visit.i))
        return held[np.concatenate(steps)], [len(step) for step in steps]
    replace = batches.draw == "replacement"
    sizes = get_batch_sizes(len(held), visit.K, batches.size, replace=replace)
    name = get_root(seed).name(visit.r, visit.m, visit.i)
    return draw_positions(load_library(), name, held, sizes, batches.size, replace=replace), sizes


def draw_clients(M: int, seed: int, number: int, start: int, stop: int) -> list[int]:
    """Return a part of the permutation of M clients with this number, as participation.Permutation draws it.

    numpy draws the same clients in four times the time.
    """
    clients: list[int] = draw_permutation(load_library(), seed, M, number)[start:stop].tolist()
    return clients
