"""Any data set as a folder of its own, in the cache's form: mapped into memory when opened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from splitrelay.data.augment import Augmentation
from splitrelay.data.cache import map_array, save_arrays
from splitrelay.data.dataset_formats import PARTS, Arrays
from splitrelay.data.images import DataSet, ImageSet
from splitrelay.errors import InputError, WorkError
from splitrelay.structured_text import parse_json

ABOUT = "about.json"


def save(data: DataSet, folder: str | Path, served_by: str | None = None) -> Path:
    """Write a data set as a folder; `load` opens it again, the same."""
    train, augmentation = data.train, data.augmentation
    arrays: Arrays = {"train-x": train.x, "train-y": train.y, "test-x": data.test.x, "test-y": data.test.y}
    about = {
        "name": data.name,
        "classes": train.classes,
        "mean": train.mean,
        "std": train.std,
        "peak": train.peak,
        "augmentation": None if augmentation is None else {"pad": augmentation.pad, "flip": augmentation.flip},
        "served by": served_by,
    }
    path = Path(folder).expanduser().absolute()
    save_arrays(arrays, about, path)
    return path


def is_saved(path: Path) -> bool:
    """Whether a folder is one that `save` wrote."""
    return (path / ABOUT).is_file() and (path / "train-x.npy").is_file()


def open_saved(path: Path) -> DataSet:
    """The data set in such a folder."""
    about = _about(path)
    classes, mean, std = (tuple(about[key]) for key in ("classes", "mean", "std"))
    try:
        arrays = {part: map_array(path / f"{part}.npy") for part in PARTS}
    except WorkError as error:
        raise InputError(error.what, hint="Save it again.") from None
    train, test = (
        ImageSet(arrays[f"{part}-x"], arrays[f"{part}-y"], classes, mean, std, about["peak"])
        for part in ("train", "test")
    )
    given = about["augmentation"]
    return DataSet(about["name"], train, test, None if given is None else Augmentation(**given))


def _about(path: Path) -> dict[str, Any]:
    try:
        about: dict[str, Any] = parse_json((path / ABOUT).read_text())
        missing = {"name", "classes", "mean", "std", "peak", "augmentation"} - set(about)
    except (OSError, ValueError) as error:
        raise InputError(f"{path / ABOUT} cannot be read ({error})") from None
    if missing:
        raise InputError(f"{path / ABOUT} lacks {', '.join(sorted(missing))}")
    return about
