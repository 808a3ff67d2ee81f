"""Random crops and flips. A visit's numbers are drawn at once, from its name; any engine can apply the same numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from splitrelay.errors import OutOfRange


@dataclass(frozen=True, eq=False)
class Crops:
    """One crop per image, in the order of the visit: its corner in the padded image, and whether it is mirrored."""

    pad: int
    top: npt.NDArray[np.int64]
    left: npt.NDArray[np.int64]
    flip: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.top)

    def __getitem__(self, which: slice) -> Crops:
        """The crops of one batch of the visit."""
        return Crops(self.pad, self.top[which], self.left[which], self.flip[which])

    def apply(self, x: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The images (B, C, H, W), each padded with zeros (black), cropped to its old size, and perhaps mirrored."""
        B, C, H, W = x.shape
        if len(self) != B:
            raise OutOfRange("crops for another number of images", value=len(self), limit=f"{B} crops")
        padded = np.zeros((B, C, H + 2 * self.pad, W + 2 * self.pad), dtype=x.dtype)
        padded[:, :, self.pad : self.pad + H, self.pad : self.pad + W] = x
        cropped = np.empty_like(x)
        # A plain loop: for batches of 20 it is faster than any indexing trick that avoids it.
        for b, (top, left, flip) in enumerate(
            zip(self.top.tolist(), self.left.tolist(), self.flip.tolist(), strict=True)
        ):
            window = padded[b, :, top : top + H, left : left + W]
            cropped[b] = window[:, :, ::-1] if flip else window
        return cropped


@dataclass(frozen=True)
class Augmentation:
    """What training may do to an image: shift it by up to `pad` pixels each way, and mirror it."""

    pad: int = 4
    flip: bool = True

    def draw(self, generator: np.random.Generator, n: int) -> Crops:
        """The numbers of n images: first all corners, then all flips (drawn even if none is wanted)."""
        corners = generator.integers(0, 2 * self.pad + 1, size=(n, 2))
        flip = generator.integers(0, 2, size=n).astype(bool) & self.flip
        return Crops(self.pad, corners[:, 0], corners[:, 1], flip)
