"""A client's own images, held against what the run expects before its first turn."""

from __future__ import annotations

from pathlib import Path
from threading import Lock

import numpy as np

from splitrelay.data.images import ImageSet, Labels
from splitrelay.data.own_sets import Raw, pixels, raw_parts
from splitrelay.errors import InputError
from splitrelay.wire.messages import Terms

READING = Lock()  # numpy reads a file's head with ast, which in Python 3.11 can fail where two threads do so at once


def read_raw(path: Path) -> Raw:
    """All images of a file or folder, as they are."""
    with READING:
        return raw_parts(path)[0]


def own_images(raw: Raw, terms: Terms) -> ImageSet:
    """These images as this run's: its shape, its classes, its way to make a pixel a number."""
    x = pixels(raw, (terms.shape[0], terms.shape[1], terms.shape[2]))
    return ImageSet(x, labels(raw, terms.classes), terms.classes, terms.mean, terms.std, terms.peak)


def labels(raw: Raw, classes: tuple[str, ...]) -> Labels:
    """Each label as a position among the run's classes: by name where it is one, else by number."""
    names = {name: position for position, name in enumerate(classes)}
    if raw.classes is not None and raw.y.dtype.kind in "iu":  # positions among the source's own names
        return _named(np.asarray(raw.classes)[raw.y], names, raw.of)
    if raw.y.dtype.kind in "US":
        return _named(raw.y, names, raw.of)
    y = raw.y.astype(np.int64)
    if not np.array_equal(y, raw.y) or y.min() < 0 or y.max() >= len(classes):
        span = f"{raw.y.min()} to {raw.y.max()}"
        raise InputError(
            f"labels of {raw.of} are not this run's classes", value=span, limit=f"whole numbers below {len(classes)}"
        )
    return y


def _named(y: np.ndarray[tuple[int, ...], np.dtype[np.str_]], names: dict[str, int], of: str) -> Labels:
    strangers = sorted(set(y.tolist()) - set(names))
    if strangers:
        limit = "one of " + ", ".join(list(names)[:20])
        raise InputError(f"labels of {of} are not this run's classes", value=", ".join(strangers[:5]), limit=limit)
    return np.array([names[name] for name in y.tolist()], dtype=np.int64)
