"""Partitions on disk: .npz (everything), or JSON {"0": [positions], ...} as the authors' code reads and writes it.

The authors name their JSON files .txt: both endings are written and read. An .npz holds `positions` (all clients'
positions in a row), `sizes`, `labels` where they are known, and `about`, a JSON text with kind and settings.
"""

from __future__ import annotations

import io
import json
import os
import zipfile
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from splitrelay.atomic_files import build_write_error
from splitrelay.data.partition import Ints, Labels, Partition, check_partition
from splitrelay.errors import ContractBroken, InputError

ENDINGS = (".npz", ".json", ".txt")
UNREADABLE = (ValueError, KeyError, TypeError, OverflowError, EOFError, zipfile.BadZipFile, zlib.error)


def save_partition(partition: Partition, path: Path) -> Path:
    """Write it in the form its name's ending asks for, whole or not at all; the same partition gives the same bytes."""
    content = _npz(partition) if ending(path) == ".npz" else _json(partition)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(content)
        temporary.replace(path)
    except OSError as error:
        raise build_write_error(path, error) from None
    finally:
        with suppress(OSError):  # gone already, or never there
            temporary.unlink()
    return path


def load_partition(path: Path, labels: Labels | None = None) -> Partition:
    """Read it, check that every sample is dealt exactly once, and lay the labels beside it if they are given."""
    read = _from_npz if ending(path) == ".npz" else _from_json
    try:
        partition = read(path)
        partition = partition if labels is None else partition.labelled(labels)
        check_partition(partition)
    except OSError as error:
        raise InputError(f"cannot read {path}", value=error.strerror or error) from None
    except (ContractBroken, *UNREADABLE) as error:
        raise InputError(f"{path} holds no partition: {error}") from None
    return partition


def ending(path: Path) -> str:
    """The ending of a partition's file, if it is one."""
    if path.suffix not in ENDINGS:
        raise InputError("a partition's name must end in .npz, .json or .txt", value=path.name)
    return path.suffix


def _json(partition: Partition) -> bytes:
    return json.dumps({str(m): held.tolist() for m, held in enumerate(partition.indices)}).encode()


def _npz(partition: Partition) -> bytes:
    arrays: dict[str, Any] = {"positions": np.concatenate(partition.indices), "sizes": partition.sizes}
    if partition.labels is not None:
        arrays["labels"] = partition.labels
    arrays["about"] = np.array(json.dumps({"kind": partition.kind, "settings": dict(partition.settings)}))
    content = io.BytesIO()
    np.savez_compressed(content, **arrays)
    return content.getvalue()


def _from_json(path: Path) -> Partition:
    clients = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(clients, dict) or set(clients) != {str(m) for m in range(len(clients))}:
        raise ValueError('the keys must be the clients, "0", "1", ... without a gap')
    return Partition(tuple(_row(m, clients[str(m)]) for m in range(len(clients))), settings={"file": path.name})


def _row(m: int, positions: object) -> Ints:
    if not isinstance(positions, list) or not all(type(j) is int for j in positions):
        raise ValueError(f"client {m} must have a list of whole numbers")
    return np.array(positions, dtype=np.int64)


def _from_npz(path: Path) -> Partition:
    if path.is_file() and not zipfile.is_zipfile(path):
        raise ValueError("it is no npz file")
    with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as arrays:
        positions, sizes = arrays["positions"], arrays["sizes"]
        labels = arrays.get("labels")
        about = json.loads(str(arrays["about"]))
    if sizes.min() < 0 or sizes.sum() != len(positions):
        raise ValueError(f"sizes sum to {sizes.sum()}, and there are {len(positions)} positions")
    return Partition(tuple(np.split(positions, np.cumsum(sizes)[:-1])), labels, about["kind"], about["settings"])
