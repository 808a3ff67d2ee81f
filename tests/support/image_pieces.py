"""Pieces of images as they would appear in the bytes of a message."""

from typing import Any

import numpy as np

from splitrelay.data.images import ImageSet


def cut_into_pieces(images: ImageSet) -> dict[str, np.ndarray]:
    """Cut each image into pieces of eight bytes: eight pixels, two float32 or one float64. By form, (N, pieces)."""
    first = images.x.reshape(len(images), -1)
    last = images.x.transpose(0, 2, 3, 1).reshape(len(images), -1)
    levels = images.normalize(images.x)
    precise = np.stack([level[images.x[:, c]] for c, level in enumerate(images.precise_levels)], axis=1)
    forms: dict[str, tuple[Any, ...]] = {
        "pixels": (np.uint8, first, last),
        "greys": ("<f4", first / 255, last / 255),
        "levels": ("<f4", levels.reshape(first.shape), levels.transpose(0, 2, 3, 1).reshape(first.shape)),
        "long levels": ("<f8", precise.reshape(first.shape), levels.reshape(first.shape)),
    }
    return {
        name: np.hstack([np.ascontiguousarray(rows, dtype).view("<u8") for rows in both])
        for name, (dtype, *both) in forms.items()
    }
