"""Sets of images. The pixels remain uint8; a batch is one gather and one table lookup of normalized values."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from splitrelay.data.augment import Augmentation, Crops
from splitrelay.data.samples import SampleSet, Target
from splitrelay.errors import InputError, OutOfRange
from splitrelay.tensor_types import TensorType

Pixels = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]
Indices = npt.NDArray[np.integer]
Inputs = npt.NDArray[np.float32]

LEVELS = 256


@dataclass(frozen=True, eq=False)
class ImageSet:
    """N images x of shape (N, C, H, W) with labels y, the names of the classes, and the normalization."""

    x: Pixels
    y: Labels
    classes: tuple[str, ...]
    mean: tuple[float, ...]  # per channel, of x / peak
    std: tuple[float, ...]
    peak: int = 255  # the value of white

    def __post_init__(self) -> None:
        if self.x.dtype != np.uint8 or self.x.ndim != 4:
            shape = f"{self.x.dtype} {self.x.shape}"
            raise InputError("images have the wrong type or shape", value=shape, limit="uint8 (N, C, H, W)")
        if self.y.dtype != np.int64 or self.y.shape != self.x.shape[:1]:
            form = f"{self.y.dtype} {self.y.shape}"
            raise InputError("labels have the wrong type or shape", value=form, limit=f"int64 ({len(self.x)},)")
        if len(self.y) and not 0 <= int(self.y.min()) <= int(self.y.max()) < len(self.classes):
            span = f"{int(self.y.min())} to {int(self.y.max())}"
            raise OutOfRange("labels outside the classes", value=span, limit=f"0 <= y < {len(self.classes)}")
        if not len(self.mean) == len(self.std) == self.x.shape[1] or min(self.std) <= 0:
            raise InputError("mean and std need one number per channel, std above 0", value=(self.mean, self.std))

    def __len__(self) -> int:
        return len(self.y)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W) of one image."""
        _, C, H, W = self.x.shape
        return C, H, W

    @property
    def inputs(self) -> tuple[TensorType, ...]:
        """The type of the input of a model: one normalized image."""
        return (TensorType(self.shape, "float32"),)

    @property
    def outputs(self) -> int:
        """The number of outputs of a model: one for each class."""
        return len(self.classes)

    @property
    def target(self) -> Target:
        """The kind of the targets. Images have classes."""
        return "classes"

    @property
    def nbytes(self) -> int:
        """The size in memory in bytes."""
        return self.x.nbytes + self.y.nbytes

    @cached_property
    def levels(self) -> Inputs:
        """The normalized value of each pixel value, (C, 256). All engines use this table, so they see the same bits."""
        levels: Inputs = self.precise_levels.astype(np.float32)
        return levels

    @cached_property
    def precise_levels(self) -> npt.NDArray[np.float64]:
        """The table for dtype=float64, not rounded to float32."""
        grey = np.arange(LEVELS) / self.peak
        mean, std = np.asarray(self.mean)[:, None], np.asarray(self.std)[:, None]
        levels: npt.NDArray[np.float64] = (grey - mean) / std
        return levels

    def normalize(self, x: Pixels, out: Inputs | None = None) -> Inputs:
        """Return (x / peak - mean) / std for each channel by table lookup."""
        inputs = np.empty(x.shape, dtype=np.float32) if out is None else out
        for c, level in enumerate(self.levels):
            np.take(level, x[:, c], out=inputs[:, c], mode="clip")  # a byte never clips; the other modes are slower
        return inputs

    def batch(self, indices: Indices, crops: Crops | None = None, out: Inputs | None = None) -> tuple[Inputs, Labels]:
        """Return the normalized images at these positions and their labels.

        Args:
            indices: Positions in the set.
            crops: One crop per image.
            out: The array to write to. Reusing it avoids new memory pages, and a colour batch of 20 with crops takes
                a third of the time.
        """
        x = self.x.take(indices, axis=0)
        return self.normalize(x if crops is None else crops.apply(x), out), self.y.take(indices)

    def part(self, indices: Indices) -> ImageSet:
        """Return a copy of these images as a new set."""
        x, y = self.x.take(indices, axis=0), self.y.take(indices)
        return ImageSet(x, y, self.classes, self.mean, self.std, self.peak)


Samples = ImageSet | SampleSet


@dataclass(frozen=True, eq=False)
class DataSet:
    """A training set, a test set, and the augmentation for training. Both sets are of the same kind."""

    name: str
    train: Samples
    test: Samples
    augmentation: Augmentation | None = None


def get_images(samples: Samples, why: str) -> ImageSet:
    """Return samples that are images.

    Args:
        samples: The samples.
        why: What needs images, for the error.

    Raises:
        InputError: They are no images.
    """
    if not isinstance(samples, ImageSet):
        raise InputError(f"{why} needs images of bytes", value=", ".join(map(str, samples.inputs)))
    return samples


def compute_moments(x: Pixels, peak: int = 255) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation of x / peak per channel, exactly, from the counts of the 256 values."""
    grey = np.arange(LEVELS) / peak
    means, stds = [], []
    for c in range(x.shape[1]):
        share = np.bincount(x[:, c].ravel(), minlength=LEVELS) / max(x[:, c].size, 1)
        mean = float(share @ grey)
        variance = float(share @ (grey - mean) ** 2)
        means.append(mean)
        stds.append(variance**0.5 or 1.0)  # a constant channel becomes 0 whatever it is divided by
    return tuple(means), tuple(stds)
