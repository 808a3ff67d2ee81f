"""A data set by name, or the user's own by path or object."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from splitrelay.data import cache
from splitrelay.data.datasets import SETS, KnownSet, known_set
from splitrelay.data.download import Progress
from splitrelay.data.fetch import fetch
from splitrelay.data.images import DataSet
from splitrelay.data.user_datasets import own
from splitrelay.errors import InputError


def load(
    source: Any,
    root: str | Path | None = None,
    *,
    download: bool = True,
    watch: Callable[[Progress], object] = lambda progress: None,
) -> DataSet:
    """A known set (fetched if it is not here), a path to one's own, or an object with `data` and `targets`."""
    if isinstance(source, str) and (source in SETS or not _is_path(source)):
        return _known(known_set(source), root, download, watch)
    return own(source)


def _known(known: KnownSet, root: str | Path | None, download: bool, watch: Callable[[Progress], object]) -> DataSet:
    folder = cache.data_folder() if root is None else Path(root).expanduser().absolute()
    if cache.place(known, folder).exists():
        return cache.data_set(known, cache.mapped(known, folder))
    if known.folder(folder).place(known.files) is not None:  # somebody else's layout
        arrays = known.format.decode(known.folder(folder).read(known.files))
        return cache.data_set(known, {part: np.array(array) for part, array in arrays.items()})
    if cache.place(known, cache.data_folder()).exists():
        return cache.data_set(known, cache.mapped(known, cache.data_folder()))
    if not download:
        raise InputError(
            f"{known.name} is not in {folder}",
            hint=f"Fetch it: splitrelay data get {known.name} (or download=True).",
        )
    fetch(known, folder, watch=watch)
    return cache.data_set(known, cache.mapped(known, folder))


def _is_path(source: str) -> bool:
    return "/" in source or "\\" in source or "." in source or Path(source).exists()
