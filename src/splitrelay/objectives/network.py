"""F_m of a neural network: the mean loss over the samples of client m."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from splitrelay.data.augment import Augmentation, Crops
from splitrelay.data.images import LEVELS, ImageSet, Samples
from splitrelay.data.samples import SampleSet, Target
from splitrelay.errors import InputError
from splitrelay.models import ModelSpec, SubModel
from splitrelay.objectives.batches import Batches
from splitrelay.objectives.losses import LOSSES, Loss, check_loss
from splitrelay.randomness import Purpose, rng

__all__ = ["DeviceImages", "DeviceSamples", "Features", "Loss", "Name", "Network", "to_device"]
Features = Any  # a tensor, or a tuple of tensors if and only if the model has several inputs
FEW = 4  # images on which a loss of the user is checked


class DeviceImages:
    """An ImageSet on a device. On the CPU it shares the memory of the ImageSet.

    The pixels remain uint8 until they are used. A batch is one gather and one table lookup.
    """

    def __init__(
        self, images: ImageSet, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
    ) -> None:
        self.x = torch.asarray(images.x).to(device)
        self.y = torch.asarray(images.y).to(device)
        levels = images.precise_levels if dtype == torch.float64 else images.levels
        self.levels = torch.from_numpy(levels.copy()).to(device, dtype).flatten()
        channels = torch.arange(images.shape[0], device=device) * LEVELS  # each channel has its own row of levels
        self.offsets = None if images.shape[0] == 1 else channels.view(1, -1, 1, 1)

    def __len__(self) -> int:
        return len(self.y)

    @property
    def device(self) -> torch.device:
        """The device of the images."""
        return self.x.device

    @property
    def target(self) -> Target:
        """The kind of the targets. Images have classes."""
        return "classes"

    def batch(self, indices: torch.Tensor, crops: Crops | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the normalized images at these positions and their labels."""
        pixels = self.x.index_select(0, indices)
        if crops is not None:
            pixels = crop(pixels, crops)
        return self.normalize(pixels), self.y.index_select(0, indices)

    def normalize(self, pixels: torch.Tensor) -> torch.Tensor:
        """Return the normalized value of each pixel by table lookup."""
        index = pixels.to(torch.int64 if pixels.device.type != "cpu" else torch.int32)
        if self.offsets is not None:
            index = index + self.offsets.to(index.dtype)
        return self.levels.index_select(0, index.flatten()).view(pixels.shape)

    def slices(self, size: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield all images in order, `size` at a time, with their labels."""
        for start in range(0, len(self), size):
            yield self.normalize(self.x[start : start + size]), self.y[start : start + size]


class DeviceSamples:
    """A SampleSet on a device, with the methods of DeviceImages.

    Real numbers get the dtype of the model when the set is made. Integers, bytes and truth values stay as they are.
    """

    def __init__(
        self, samples: SampleSet, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
    ) -> None:
        self.arrays = tuple(_convert_to_tensor(array, dtype, device) for array in samples.arrays)
        self.y = _convert_to_tensor(samples.y, dtype, device)
        self.target: Target = samples.target
        self.has_several = isinstance(samples.x, tuple)
        self.inputs = samples.inputs

    def __len__(self) -> int:
        return len(self.y)

    @property
    def device(self) -> torch.device:
        """The device of the samples."""
        return self.y.device

    def batch(self, indices: torch.Tensor, crops: Crops | None = None) -> tuple[Features, torch.Tensor]:
        """Return the features at these positions and their targets."""
        if crops is not None:
            raise InputError("only images can be cropped", hint="Remove the augmentation.")
        return self._join([array.index_select(0, indices) for array in self.arrays]), self.y.index_select(0, indices)

    def slices(self, size: int) -> Iterator[tuple[Features, torch.Tensor]]:
        """Yield all samples in order, `size` at a time, with their targets."""
        for start in range(0, len(self), size):
            here = slice(start, start + size)
            yield self._join([array[here].clone() for array in self.arrays]), self.y[here]

    def _join(self, parts: Sequence[torch.Tensor]) -> Features:
        return tuple(parts) if self.has_several else parts[0]


def to_device(
    samples: Samples, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
) -> DeviceImages | DeviceSamples:
    """Return a set of images or of other samples on a device."""
    if isinstance(samples, ImageSet):
        return DeviceImages(samples, dtype, device)
    return DeviceSamples(samples, dtype, device)


def _convert_to_tensor(array: npt.NDArray[Any], dtype: torch.dtype, device: torch.device | str) -> torch.Tensor:
    tensor = torch.asarray(array)
    return tensor.to(device, dtype) if tensor.is_floating_point() else tensor.to(device)


def crop(pixels: torch.Tensor, crops: Crops) -> torch.Tensor:
    """Apply the crops and flips on the device. The result equals that of Crops.apply."""
    B, _, H, W = pixels.shape
    device = pixels.device
    padded = torch.nn.functional.pad(pixels, [crops.pad] * 4)
    rows = torch.as_tensor(crops.top, device=device).view(-1, 1) + torch.arange(H, device=device)
    columns = torch.as_tensor(crops.left, device=device).view(-1, 1) + torch.arange(W, device=device)
    flip = torch.from_numpy(crops.flip).to(device).view(-1, 1)
    columns = torch.where(flip, columns.flip(1), columns)
    batch = torch.arange(B, device=device).view(B, 1, 1)
    return padded.permute(0, 2, 3, 1)[batch, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2).contiguous()


@dataclass(frozen=True)
class Name:
    """The name of a visit's randomness: the seed, the round, the client and the occurrence in the round."""

    seed: int
    r: int
    m: int
    i: int

    def rng(self, purpose: Purpose, *more: int) -> np.random.Generator:
        """Return the generator of the visit for this purpose."""
        return rng(self.seed, purpose, self.r, self.m, self.i, *more)


@dataclass(frozen=True, eq=False)
class Network:
    """A model, a training set, and how clients draw batches from it.

    Attributes:
        holdings: For each client, the positions of its images in the training set.
    """

    model_spec: ModelSpec
    images: DeviceImages | DeviceSamples
    holdings: Sequence[npt.NDArray[np.int64]]
    batches: Batches = field(default_factory=Batches)
    augmentation: Augmentation | None = None
    loss: Loss = torch.nn.functional.cross_entropy
    dtype: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        if self.loss not in LOSSES.values():
            features, labels = next(self.images.slices(FEW))
            model = SubModel(self.model_spec, 0, len(self.model_spec.layers()), self.dtype, self.device)
            model.load(self.model_spec.x0(0, self.dtype))
            check_loss(self.loss, model.predict(features), labels)

    @property
    def M(self) -> int:
        """The number of clients."""
        return len(self.holdings)

    @property
    def device(self) -> torch.device:
        """The device of the images and of the computation."""
        return self.images.device

    def samples(self, name: Name, K: int) -> Iterator[tuple[Features, torch.Tensor]]:
        """Yield (features, labels) of the K steps of a visit. All positions and crops are drawn before the first."""
        held = self.holdings[name.m]
        steps = self.batches.positions(len(held), K, name.rng(Purpose.BATCHES))
        together = torch.from_numpy(held[np.concatenate(steps)]).to(self.device)
        crops = self.augmentation and self.augmentation.draw(name.rng(Purpose.AUGMENT), len(together))
        start = 0
        for step in steps:
            here = slice(start, start + len(step))
            yield self.images.batch(together[here], crops[here] if crops else None)
            start = here.stop
