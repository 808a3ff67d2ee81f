"""Where a run can go on: the state after a round, in safetensors, with a manifest that proves it whole."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save

from splitrelay.atomic_files import replace_atomically, write_text
from splitrelay.errors import OutOfRange
from splitrelay.runs.state_serialization import flattened, rebuilt
from splitrelay.structured_text import parse_json

KEPT = 2  # unless said otherwise: the newest, and the one before it in case the newest is damaged


@dataclass(frozen=True)
class Checkpoint:
    """After `round` rounds: the bytes so far, and the state's file with its checksum."""

    round: int
    up: int
    down: int
    sha256: str
    numbers: dict[str, float]


class Checkpoints:
    """The checkpoints of one run. The manifest is written last: without it a file of tensors does not count."""

    def __init__(self, folder: Path, keep: int = KEPT) -> None:
        if keep < KEPT:
            raise OutOfRange("checkpoints to keep", value=keep, limit=f"at least {KEPT}")
        self.folder, self.keep = folder, keep

    def save(self, r: int, state: Any, up: int, down: int) -> None:
        """Keep the state, then forget all but the newest ones."""
        tensors, numbers = flattened(state)
        with replace_atomically(self._tensors(r), private=True) as temporary:
            temporary.write_bytes(save(tensors))  # save_file would hide what the system said
        manifest = Checkpoint(r, up, down, _sha256(self._tensors(r)), numbers)
        write_text(self._manifest(r), json.dumps(asdict(manifest)) + "\n", private=True)
        for old in self.rounds()[: -self.keep]:
            self._manifest(old).unlink()
            self._tensors(old).unlink(missing_ok=True)

    def newest(self, like: Any, at_most: int | None = None) -> tuple[Checkpoint, Any] | None:
        """The newest checkpoint that is whole, with its state; None where there is none."""
        for manifest in self._whole():
            if at_most is None or manifest.round <= at_most:
                with suppress(SafetensorError, OSError, KeyError):
                    return manifest, rebuilt(like, load_file(self._tensors(manifest.round)), manifest.numbers)
        return None

    def copy(self, r: int, folder: Path) -> None:
        """One of them, into another folder."""
        folder.mkdir(parents=True, exist_ok=True)
        for path in (self._tensors(r), self._manifest(r)):
            shutil.copyfile(path, folder / path.name)

    def whole_rounds(self, at_most: int | None = None) -> list[int]:
        """List the rounds whose checkpoint is whole, in order."""
        rounds = sorted(manifest.round for manifest in self._whole())
        return [r for r in rounds if at_most is None or r <= at_most]

    def files_after(self, r: int) -> list[Path]:
        """List the files of the checkpoints after round r, manifests first: without one a state does not count."""
        later = [path for path in sorted(self.folder.glob("[0-9]*")) if path.stem.isdecimal() and int(path.stem) > r]
        return sorted(later, key=lambda path: path.suffix != ".json")

    def _whole(self) -> Iterator[Checkpoint]:
        for r in reversed(self.rounds()):
            with suppress(OSError, ValueError, TypeError):
                manifest = Checkpoint(**parse_json(self._manifest(r).read_text(encoding="utf-8")))
                if _sha256(self._tensors(r)) == manifest.sha256:
                    yield manifest

    def rounds(self) -> list[int]:
        """Those that are kept."""
        return sorted(int(path.stem) for path in self.folder.glob("[0-9]*.json"))

    def _manifest(self, r: int) -> Path:
        return self.folder / f"{r:06d}.json"

    def _tensors(self, r: int) -> Path:
        return self.folder / f"{r:06d}.safetensors"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
