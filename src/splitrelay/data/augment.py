"""Random crops and flips. All numbers of a visit are drawn at once, and every engine applies the same numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from splitrelay.errors import OutOfRange


@dataclass(frozen=True, eq=False)
class Crops:
    """One crop per image of a visit: the corner in the padded image, and whether it is mirrored."""

    pad: int
    top: npt.NDArray[np.int64]
    left: npt.NDArray[np.int64]
    flip: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.top)

    def __getitem__(self, which: slice) -> Crops:
        """Return the crops of one batch of the visit."""
        return Crops(self.pad, self.top[which], self.left[which], self.flip[which])

    def apply(self, x: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Pad each image (B, C, H, W) with zeros, crop it to its original size, and mirror it if `flip` is True."""
        B, C, H, W = x.shape
        if len(self) != B:
            raise OutOfRange("the number of crops is not the number of images", value=len(self), limit=f"{B} crops")
        padded = np.zeros((B, C, H + 2 * self.pad, W + 2 * self.pad), dtype=x.dtype)
        padded[:, :, self.pad : self.pad + H, self.pad : self.pad + W] = x
        cropped = np.empty_like(x)
        # For batches of 20, a loop is faster than fancy indexing.
        for b, (top, left, flip) in enumerate(
            zip(self.top.tolist(), self.left.tolist(), self.flip.tolist(), strict=True)
        ):
            window = padded[b, :, top : top + H, left : left + W]
            cropped[b] = window[:, :, ::-1] if flip else window
        return cropped


@dataclass(frozen=True)
class Augmentation:
    """Shift an image by up to `pad` pixels in each direction, and mirror it if `flip` is True."""

    pad: int = 4
    flip: bool = True

    def draw(self, generator: np.random.Generator, n: int) -> Crops:
        """Draw the crops of n images: first all corners, then all flips (they are drawn even if flip is False)."""
        corners = generator.integers(0, 2 * self.pad + 1, size=(n, 2))
        flip = generator.integers(0, 2, size=n).astype(bool) & self.flip
        return Crops(self.pad, corners[:, 0], corners[:, 1], flip)
