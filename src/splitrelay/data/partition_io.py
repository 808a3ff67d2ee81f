"""Read and write partitions, and export one folder per client.

An .npz file contains everything: `positions` (of all clients in a row), `sizes`, `labels` if they are known, and
`about`, a JSON text with kind and settings. A JSON file contains {"0": [positions], ...}, as the authors' code reads
and writes it. The authors use the suffix .txt for JSON files; .json and .txt are both supported.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from splitrelay.atomic_files import build_write_error, replace_atomically
from splitrelay.data.partition import Labels, Partition, check_partition
from splitrelay.errors import ContractBroken, InputError, OutputError
from splitrelay.structured_text import parse_json

SUFFIXES = (".npz", ".json", ".txt")
UNREADABLE = (ValueError, KeyError, TypeError, OverflowError, EOFError, zipfile.BadZipFile, zlib.error)


def save_partition(partition: Partition, path: Path) -> Path:
    """Write the partition atomically in the format of the suffix. Equal partitions give equal bytes."""
    content = _encode_npz(partition) if _get_suffix(path) == ".npz" else _encode_json(partition)
    with replace_atomically(path) as temporary:
        temporary.write_bytes(content)
    return path


def load_partition(path: Path, labels: Labels | None = None) -> Partition:
    """Read a partition and check that every sample belongs to exactly one client.

    Args:
        path: An .npz, .json or .txt file.
        labels: The labels of the training set. They are added to the partition.
    """
    read = _read_npz if _get_suffix(path) == ".npz" else _read_json
    try:
        partition = read(path)
        partition = partition if labels is None else partition.with_labels(labels)
        check_partition(partition)
    except OSError as error:
        raise InputError(f"cannot read {path}", value=error.strerror or error) from None
    except (ContractBroken, *UNREADABLE) as error:
        raise InputError(f"{path} is not a partition: {error}") from None
    return partition


def export_partition(partition: Partition, x: NDArray[Any], y: NDArray[Any], to: Path) -> Path:
    """Write the data of each client into a folder of its own, for a deployment.

    Each client with samples gets to/client-0003/data.npz (x, y) and meta.json. The partition itself is written to
    to/partition.npz. The folder appears only when it is complete. A folder that is not empty is not changed.
    """
    if len(x) != partition.N or len(y) != partition.N:
        what = f"the partition has {partition.N} samples, the data set has {len(x)} images and {len(y)} labels"
        raise InputError(what)
    return export_folders(partition, to, lambda m, folder: _write_client(partition, m, x, y, folder))


def export_folders(partition: Partition, to: Path, write: Callable[[int, Path], object]) -> Path:
    """Write a folder for each client with samples, and the partition itself.

    Args:
        partition: The samples of each client.
        to: The folder to write. It appears only when it is complete.
        write: Writes the files of client m into its folder, which exists.
    """
    temporary = to.with_name(f".{to.name}.{os.getpid()}")
    try:
        if to.exists() and (not to.is_dir() or any(to.iterdir())):
            raise OutputError(f"{to} exists and is not empty", hint="Choose another place or remove it.")
        temporary.mkdir(parents=True)
        for m in partition.clients:
            folder = temporary / get_client_folder(m, partition.M)
            folder.mkdir()
            write(m, folder)
        save_partition(partition, temporary / "partition.npz")
        temporary.replace(to)
    except OSError as error:
        raise build_write_error(to, error) from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return to


def get_client_folder(m: int, M: int) -> str:
    """Return the name of the folder of client m: at least four digits, and the same number for all M clients."""
    return f"client-{m:0{max(4, len(str(M - 1)))}d}"


def get_client_labels(y: NDArray[Any], classes: Sequence[str]) -> NDArray[Any]:
    """Return the labels for the file of a client: positions, or names if a position could be confused with a name."""
    is_counted = list(classes) == [str(n) for n in range(len(classes))]
    has_numbers = any(name.lstrip("-")[:1].isdecimal() for name in classes)
    return np.asarray(classes)[y] if has_numbers and not is_counted else y


def _write_client(partition: Partition, m: int, x: NDArray[Any], y: NDArray[Any], folder: Path) -> None:
    held = partition.indices[m]
    np.savez(folder / "data.npz", x=x[held], y=y[held])
    classes, counts = np.unique(y[held], return_counts=True)
    meta = {
        "client": m,
        "M": partition.M,
        "samples": len(held),
        "classes": dict(zip(map(str, classes.tolist()), counts.tolist(), strict=True)),
        "kind": partition.kind,
        "settings": dict(partition.settings),
    }
    (folder / "meta.json").write_text(json.dumps(meta, indent=2) + "\n", encoding="utf-8")


def _get_suffix(path: Path) -> str:
    if path.suffix not in SUFFIXES:
        raise InputError("the name of a partition file must end in .npz, .json or .txt", value=path.name)
    return path.suffix


def _encode_json(partition: Partition) -> bytes:
    return json.dumps({str(m): held.tolist() for m, held in enumerate(partition.indices)}).encode()


def _encode_npz(partition: Partition) -> bytes:
    arrays: dict[str, Any] = {"positions": np.concatenate(partition.indices), "sizes": partition.sizes}
    if partition.labels is not None:
        arrays["labels"] = partition.labels
    arrays["about"] = np.array(json.dumps({"kind": partition.kind, "settings": dict(partition.settings)}))
    content = io.BytesIO()
    np.savez_compressed(content, **arrays)
    return content.getvalue()


def _read_json(path: Path) -> Partition:
    clients = parse_json(path.read_text(encoding="utf-8"))
    if not isinstance(clients, dict) or set(clients) != {str(m) for m in range(len(clients))}:
        raise ValueError('the keys must be the clients "0", "1", ... without a gap')
    rows = [clients[str(m)] for m in range(len(clients))]
    for m, row in enumerate(rows):
        if not isinstance(row, list) or not all(type(j) is int for j in row):
            raise ValueError(f"client {m} must have a list of integers")
    return Partition(tuple(np.array(row, dtype=np.int64) for row in rows), settings={"file": path.name})


def _read_npz(path: Path) -> Partition:
    if path.is_file() and not zipfile.is_zipfile(path):
        raise ValueError("it is not an npz file")
    with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as arrays:
        positions, sizes = arrays["positions"], arrays["sizes"]
        labels = arrays.get("labels")
        about = parse_json(str(arrays["about"]))
    if sizes.min() < 0 or sizes.sum() != len(positions):
        raise ValueError(f"the sizes sum to {sizes.sum()}, but there are {len(positions)} positions")
    return Partition(tuple(np.split(positions, np.cumsum(sizes)[:-1])), labels, about["kind"], about["settings"])
