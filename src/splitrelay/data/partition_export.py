"""One folder per client, as a deployment needs it: a client's own images and labels, and nobody else's."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from splitrelay.atomic_files import build_write_error
from splitrelay.data.partition import Partition
from splitrelay.data.partition_files import save_partition
from splitrelay.errors import InputError, OutputError


def export_partition(partition: Partition, x: NDArray[Any], y: NDArray[Any], to: Path) -> Path:
    """Write to/client-0003/data.npz (x, y) and meta.json for every client with samples, and to/partition.npz.

    The folder appears whole or not at all; one that holds something is left alone. Empty clients get no folder.
    """
    if len(x) != partition.N or len(y) != partition.N:
        raise InputError(f"the partition deals {partition.N} samples, the data set has {len(x)} and {len(y)} labels")
    temporary = to.with_name(f".{to.name}.{os.getpid()}")
    try:
        if to.exists() and (not to.is_dir() or any(to.iterdir())):
            raise OutputError(f"{to} is there already and not empty", hint="Choose another place or remove it.")
        temporary.mkdir(parents=True)
        for m in partition.clients:
            _write_client(partition, m, x, y, temporary / folder(m, partition.M))
        save_partition(partition, temporary / "partition.npz")
        temporary.replace(to)
    except OSError as error:
        raise build_write_error(to, error) from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return to


def told(y: NDArray[Any], classes: Sequence[str]) -> NDArray[Any]:
    """Labels as a client tells them: positions, or names where a number could be taken for another class's name."""
    counted = list(classes) == [str(n) for n in range(len(classes))]
    numbers = any(name.lstrip("-")[:1].isdecimal() for name in classes)
    return np.asarray(classes)[y] if numbers and not counted else y


def folder(m: int, M: int) -> str:
    """The name of client m's folder among M: four digits, or as many as it takes."""
    return f"client-{m:0{max(4, len(str(M - 1)))}d}"


def _write_client(partition: Partition, m: int, x: NDArray[Any], y: NDArray[Any], place: Path) -> None:
    place.mkdir()
    held = partition.indices[m]
    np.savez(place / "data.npz", x=x[held], y=y[held])
    classes, counts = np.unique(y[held], return_counts=True)
    meta = {
        "client": m,
        "M": partition.M,
        "samples": len(held),
        "classes": dict(zip(map(str, classes.tolist()), counts.tolist(), strict=True)),
        "kind": partition.kind,
        "settings": dict(partition.settings),
    }
    (place / "meta.json").write_text(json.dumps(meta, indent=2) + "\n", encoding="utf-8")
