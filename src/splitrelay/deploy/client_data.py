"""Load a client's own images and check them against what the run expects, before its first visit."""

from __future__ import annotations

import re
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt

from splitrelay.data.cache import is_dataset_folder, open_dataset
from splitrelay.data.images import ImageSet, Labels
from splitrelay.data.user_datasets import Raw, read_parts, simplify_labels, to_pixels
from splitrelay.errors import InputError
from splitrelay.network.messages import Terms

READING = Lock()  # numpy reads a file's head with ast, which in Python 3.11 can fail where two threads do so at once
WHOLE = re.compile(r"(-?\d+)(\.0+)?")  # a whole number written out, also as some tables write it


def read_raw(path: Path, test: bool = False) -> Raw:
    """The images of a file or folder, as they are; where it has two parts, its training part, or its `test` part."""
    place = path.expanduser()
    with READING:
        if not is_dataset_folder(place):
            train, held = read_parts(place)
            return held if test and held is not None else train
        data = open_dataset(place)
    part = data.test if test else data.train
    return Raw(part.x, part.y, str(place), part.classes)


def convert_images(raw: Raw, terms: Terms) -> ImageSet:
    """These images as this run's: its shape, its classes, its way to make a pixel a number."""
    x = to_pixels(raw, (terms.shape[0], terms.shape[1], terms.shape[2]), terms.peak)
    return ImageSet(x, convert_labels(raw, terms.classes), terms.classes, terms.mean, terms.std, terms.peak)


def convert_labels(raw: Raw, classes: tuple[str, ...]) -> Labels:
    """Each label as a position among the run's classes: numbers are positions only where no class is a number."""
    y = _normalize_labels(raw, classes)
    written, which = np.unique(y, return_inverse=True)
    known, limit = _list_labels(classes, by_name=y.dtype.kind not in "iu" or any(map(WHOLE.fullmatch, classes)))
    keys = [_normalize_name(str(label)) for label in written.tolist()]
    strangers = [str(label) for label, key in zip(written, keys, strict=True) if key not in known]
    if strangers:
        what = f"labels of {raw.of} are not this run's classes"
        raise InputError(what, value=", ".join(strangers[:5]), limit=limit)
    return np.array([known[key] for key in keys], dtype=np.int64)[which]


def _list_labels(classes: tuple[str, ...], by_name: bool) -> tuple[dict[str, int], str]:
    """The labels that this run knows, with their positions; and how to say which."""
    if by_name:
        return {_normalize_name(name): n for n, name in enumerate(classes)}, "one of " + ", ".join(classes[:20])
    return {str(n): n for n in range(len(classes))}, _describe_range(classes)


def _normalize_labels(raw: Raw, classes: tuple[str, ...]) -> npt.NDArray[Any]:
    """The labels as names or numbers; positions among the source's own names as these names."""
    y = simplify_labels(raw)
    if y.dtype.kind == "b" and not {"False", "True"} & set(classes):
        return y.astype(np.int64)
    if raw.classes is None or y.dtype.kind not in "iu":
        return y
    strangers = np.unique(y[(y < 0) | (y >= len(raw.classes))])
    if strangers.size:
        found = ", ".join(map(str, strangers[:5].tolist()))
        raise InputError(
            f"{raw.of} has labels outside its own classes", value=found, limit=_describe_range(raw.classes)
        )
    names: npt.NDArray[Any] = np.asarray(raw.classes)[y]
    return names


def _normalize_name(name: str) -> str:
    """What makes 7, 07 and 7.0 one name."""
    whole = WHOLE.fullmatch(name)
    return name if whole is None else str(int(whole[1]))


def _describe_range(classes: tuple[str, ...]) -> str:
    return f"whole numbers from 0 to {len(classes) - 1}"
