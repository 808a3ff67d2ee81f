"""Checkpoints of a run: the state after a round as a safetensors file, with a manifest that has its checksum.

The manifest is written last. A file of tensors without a manifest does not count. The metadata of the tensors name the
run to which they belong, so that a checkpoint copied from another run is refused. Older files have no such name.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save

from splitrelay.atomic_files import replace_atomically, write_text
from splitrelay.errors import InputError, OutOfRange, WorkError
from splitrelay.structured_text import parse_json

RUN = "run"  # key of the metadata
MIN_KEPT = 2  # the newest checkpoint, and the one before it in case the newest is damaged


@dataclass(frozen=True)
class Checkpoint:
    """The manifest of a checkpoint: round, bytes sent so far, checksum of the tensors, and numbers of the state."""

    round: int
    up: int
    down: int
    sha256: str
    numbers: dict[str, float]


class Checkpoints:
    """The checkpoints of one run."""

    def __init__(self, folder: Path, keep: int = MIN_KEPT) -> None:
        if keep < MIN_KEPT:
            raise OutOfRange("checkpoints to keep", value=keep, limit=f"at least {MIN_KEPT}")
        self.folder, self.keep = folder, keep

    def save(self, r: int, state: Any, up: int, down: int, run: str = "") -> None:
        """Write the state after round r of this run, then remove all but the newest checkpoints."""
        tensors, numbers = flatten_state(state)
        with replace_atomically(self._get_tensor_file(r), private=True) as temporary:
            temporary.write_bytes(save(tensors, {RUN: run} if run else None))  # save_file would hide the system's error
        manifest = Checkpoint(r, up, down, _compute_sha256(self._get_tensor_file(r)), numbers)
        write_text(self._get_manifest_file(r), json.dumps(asdict(manifest)) + "\n", private=True)
        for old in self.list_rounds()[: -self.keep]:
            self._get_manifest_file(old).unlink()
            self._get_tensor_file(old).unlink(missing_ok=True)

    def load_newest(self, like: Any, at_most: int | None = None, run: str = "") -> tuple[Checkpoint, Any] | None:
        """Return the newest complete checkpoint with its state, or None if there is none.

        Args:
            like: A state of the same type, for example the one before the first round.
            at_most: The last round to consider.
            run: The name of the run, as it was given to `save`; empty: any run.

        Raises:
            InputError: The checkpoint is of another run.
        """
        for manifest in self._iterate_complete():
            if at_most is None or manifest.round <= at_most:
                self.check_run(manifest.round, run)
                with suppress(SafetensorError, OSError, KeyError):
                    tensors = load_file(self._get_tensor_file(manifest.round))
                    return manifest, rebuild_state(like, tensors, manifest.numbers)
        return None

    def check_run(self, r: int, run: str) -> None:
        """Raise InputError if the checkpoint of round r names another run. One that names none is accepted."""
        with suppress(SafetensorError, OSError):
            with safe_open(self._get_tensor_file(r), "pt") as file:
                found = (file.metadata() or {}).get(RUN, run)
            if run and found != run:
                hint = "Remove its two files, or bring back those of this run; --from-scratch starts again."
                what = f"{self._get_tensor_file(r)} is a checkpoint of another run"
                raise InputError(what, value=found[:12], limit=run[:12], hint=hint)

    def copy(self, r: int, folder: Path) -> None:
        """Copy the checkpoint of round r to another folder."""
        folder.mkdir(parents=True, exist_ok=True)
        for path in (self._get_tensor_file(r), self._get_manifest_file(r)):
            shutil.copyfile(path, folder / path.name)

    def list_rounds(self) -> list[int]:
        """Return the rounds that have a manifest, in order."""
        return sorted(int(path.stem) for path in self.folder.glob("[0-9]*.json") if path.stem.isdecimal())

    def list_complete_rounds(self, at_most: int | None = None) -> list[int]:
        """Return the rounds whose checkpoint is complete, in order."""
        rounds = sorted(manifest.round for manifest in self._iterate_complete())
        return [r for r in rounds if at_most is None or r <= at_most]

    def list_files_after(self, r: int) -> list[Path]:
        """Return the files of the checkpoints after round r. Manifests come first: without one, a state is ignored."""
        later = [path for path in sorted(self.folder.glob("[0-9]*")) if path.stem.isdecimal() and int(path.stem) > r]
        return sorted(later, key=lambda path: path.suffix != ".json")

    def _iterate_complete(self) -> Iterator[Checkpoint]:
        """Yield the manifests of complete checkpoints, newest first."""
        for r in reversed(self.list_rounds()):
            with suppress(OSError, ValueError, TypeError):
                manifest = Checkpoint(**parse_json(self._get_manifest_file(r).read_text(encoding="utf-8")))
                if _compute_sha256(self._get_tensor_file(r)) == manifest.sha256:
                    yield manifest

    def _get_manifest_file(self, r: int) -> Path:
        return self.folder / f"{r:06d}.json"

    def _get_tensor_file(self, r: int) -> Path:
        return self.folder / f"{r:06d}.safetensors"


def _compute_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def flatten_state(state: Any) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
    """Return the tensors and the numbers of a state, by their paths in it.

    A state is a tensor, a number, a dataclass, tuple or list of states, or a mapping from clients to tensors or
    numbers.
    """
    tensors: dict[str, torch.Tensor] = {}
    numbers: dict[str, float] = {}
    for path, value in _iterate_leaves("state", state):
        if isinstance(value, torch.Tensor):
            tensors[path] = value.detach().cpu().clone()
        else:
            numbers[path] = value
    return tensors, numbers


def check_state(state: Any) -> None:
    """Raise WorkError if a state cannot be written to a checkpoint."""
    for _ in _iterate_leaves("state", state):
        pass


def rebuild_state(
    like: Any, tensors: Mapping[str, torch.Tensor], numbers: Mapping[str, float], path: str = "state"
) -> Any:
    """Return the state that was flattened. All tensors go to the device of the tensors in `like`.

    Args:
        like: A state of the same type. Its mappings may be empty.
        tensors: The tensors by path.
        numbers: The numbers by path.
        path: The path of `like`.
    """
    devices = (leaf.device for _, leaf in _iterate_leaves(path, like) if isinstance(leaf, torch.Tensor))
    device = next(devices, torch.device("cpu"))
    return _rebuild(like, {name: tensor.to(device) for name, tensor in tensors.items()}, numbers, path)


def _rebuild(like: Any, tensors: Mapping[str, torch.Tensor], numbers: Mapping[str, float], path: str) -> Any:
    if isinstance(like, torch.Tensor):
        return tensors[path]
    if is_dataclass(like) and not isinstance(like, type):
        parts = {f.name: _rebuild(getattr(like, f.name), tensors, numbers, f"{path}.{f.name}") for f in fields(like)}
        return replace(like, **parts)
    if isinstance(like, tuple | list):
        items = [_rebuild(item, tensors, numbers, f"{path}.{j}") for j, item in enumerate(like)]
        saved = {
            name.removeprefix(f"{path}.").partition(".")[0]
            for name in (*tensors, *numbers)
            if name.startswith(f"{path}.")
        }
        if len(saved) > len(items):
            raise WorkError(
                f"{path} has another length in the checkpoint", limit=f"{len(items)} items", value=len(saved)
            )
        return type(like)(*items) if hasattr(like, "_fields") else type(like)(items)  # a NamedTuple takes its fields
    if isinstance(like, Mapping):
        leaves: dict[str, Any] = {**tensors, **numbers}
        clients = sorted(int(name.rpartition(".")[2]) for name in leaves if name.rpartition(".")[0] == path)
        return {m: leaves[f"{path}.{m}"] for m in clients}
    return numbers[path]


def _iterate_leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from _iterate_leaves(f"{path}.{field.name}", getattr(value, field.name))
    elif isinstance(value, tuple | list):
        for j, item in enumerate(value):
            yield from _iterate_leaves(f"{path}.{j}", item)
    elif isinstance(value, Mapping):
        for m in sorted(value):
            yield from _iterate_leaves(f"{path}.{m}", value[m])
    elif isinstance(value, torch.Tensor | int | float):
        yield path, value
    else:
        limit = "tensors, numbers, and dataclasses, tuples, lists or mappings of them"
        raise WorkError(f"{path} of the algorithm cannot be saved", limit=limit, value=type(value).__name__)
