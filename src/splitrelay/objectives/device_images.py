"""A set of images on a device: uint8 until used, a batch is a gather and a look-up."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from splitrelay.data.augment import Crops
from splitrelay.data.images import LEVELS, ImageSet


class DeviceImages:
    """The tensors of an ImageSet, shared with it where they are on the CPU."""

    def __init__(
        self, images: ImageSet, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
    ) -> None:
        self.x = _shared(images.x).to(device)
        self.y = _shared(images.y).to(device)
        self.levels = torch.from_numpy(images.levels.copy()).to(device, dtype).flatten()
        channels = torch.arange(images.shape[0], device=device) * LEVELS  # each channel has its own row of levels
        self.offsets = None if images.shape[0] == 1 else channels.view(1, -1, 1, 1)

    def __len__(self) -> int:
        return len(self.y)

    def batch(self, indices: torch.Tensor, crops: Crops | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """The images at these positions, ready for a model, and their labels."""
        pixels = self.x.index_select(0, indices)
        if crops is not None:
            pixels = cropped(pixels, crops)
        return self.normalised(pixels), self.y.index_select(0, indices)

    def normalised(self, pixels: torch.Tensor) -> torch.Tensor:
        """Each pixel's level, by look-up."""
        wanted = pixels.to(torch.int64 if pixels.device.type != "cpu" else torch.int32)
        if self.offsets is not None:
            wanted = wanted + self.offsets.to(wanted.dtype)
        return self.levels.index_select(0, wanted.flatten()).view(pixels.shape)

    def slices(self, size: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """All images in order, `size` at a time."""
        for start in range(0, len(self), size):
            yield self.normalised(self.x[start : start + size]), self.y[start : start + size]


def cropped(pixels: torch.Tensor, crops: Crops) -> torch.Tensor:
    """The same crops and flips as Crops.applied, on the device."""
    B, _, H, W = pixels.shape
    padded = torch.nn.functional.pad(pixels, [crops.pad] * 4)
    rows = _corner(crops.top, pixels.device) + torch.arange(H, device=pixels.device)
    columns = _corner(crops.left, pixels.device) + torch.arange(W, device=pixels.device)
    flip = torch.from_numpy(crops.flip).to(pixels.device).view(-1, 1)
    columns = torch.where(flip, columns.flip(1), columns)
    batch = torch.arange(B, device=pixels.device).view(B, 1, 1)
    return padded.permute(0, 2, 3, 1)[batch, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2).contiguous()


def _corner(offsets: object, device: torch.device) -> torch.Tensor:
    return torch.as_tensor(offsets, device=device).view(-1, 1)


def _shared(array: object) -> torch.Tensor:
    """A tensor on the same memory; numpy's read-only mark is ours to respect, since torch has none."""
    return torch.asarray(array)
