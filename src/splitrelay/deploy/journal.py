"""Store what the server needs after a crash: the highest fence, each committed or skipped visit, and the events.

A visit is committed when its file has its name: both halves and what they cost, flushed to the disk, then renamed.
After a crash the round is run again, and visits that are in the journal answer from there: no step counts twice.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from xxhash import xxh3_64, xxh3_128

from splitrelay.algorithms.base import Cost, Done, Outcome, Skipped, Visit
from splitrelay.atomic_files import create_folder, replace_atomically, write_text
from splitrelay.deploy.deposit_bound import LARGEST_LOSS
from splitrelay.deploy.events import EventLog
from splitrelay.errors import InputError
from splitrelay.structured_text import parse_json

EVENTS = "events.jsonl"
NUMBER = re.compile(rb"[0-9]{1,18}\n")  # with the line end: without it, digits may be missing
RESERVED = 100  # number of fences that are reserved with one write, so that few visits wait for it
CHECKSUM = "xxh3_128"  # over the content of each file of a visit: a flipped bit is noticed before it counts
DIGEST = 16  # bytes of it
MARGIN = 1000  # fences that may have been granted after the last one in the events


class Fences:
    """Numbers that only grow, also over restarts: stored before they are granted."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._last = self._stored = _read_number(path)

    def next(self) -> int:
        """Return a fence that was never used."""
        if self._last == self._stored:
            write_text(self.path, f"{self._stored + RESERVED}\n", private=True)
            self._stored += RESERVED
        self._last += 1
        return self._last


def _read_number(path: Path) -> int:
    """Return the number in the file; 0 if there is no file yet."""
    try:
        line = path.read_bytes()
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise InputError(f"cannot read {path}", value=error.strerror, hint="Make it readable.") from None
    if not NUMBER.fullmatch(line):
        hint = f"Write a number into it that is {MARGIN} above every fence in {path.with_name(EVENTS)}."
        raise InputError(f"{path} is damaged", limit="a whole number on a line", value=repr(line[:20]), hint=hint)
    return int(line)


class Journal:
    """The visits since the last checkpoint, and the events of the whole run."""

    def __init__(self, folder: Path) -> None:
        create_folder(folder, private=True)
        self.folder = folder / "visits"
        self.events = folder / EVENTS
        self.fences = Fences(folder / "fence")
        self._log = EventLog(self.events)

    def commit(self, visit: Visit[Any], fence: int, done: Done[Any]) -> None:
        """Commit a visit: from here on it counts."""
        tensors, numbers = _split_state(done.x)
        facts = {"fence": fence, "up": done.cost.up, "down": done.cost.down, "loss": done.cost.loss.hex()}
        facts |= {"start": _compute_fingerprint(visit.x), **numbers}
        facts[CHECKSUM] = _compute_checksum(tensors, facts)
        with replace_atomically(self._get_visit_file(visit), private=True) as temporary:
            temporary.write_bytes(save(tensors, {name: json.dumps(value) for name, value in facts.items()}))

    def skip(self, visit: Visit[Any], why: str) -> None:
        """Record that a visit is skipped."""
        content = {"why": why, CHECKSUM: xxh3_128(why.encode()).hexdigest()}
        write_text(self._get_visit_file(visit).with_suffix(".skipped"), json.dumps(content) + "\n", private=True)

    def drop(self, visit: Visit[Any]) -> None:
        """Remove a committed visit. It is made again, or skipped."""
        self._get_visit_file(visit).unlink(missing_ok=True)

    def find(self, visit: Visit[Any]) -> Outcome[Any] | None:
        """Return the recorded outcome of a visit, or None.

        Raises:
            InputError: The file is damaged. The visit is not simply made again, because peer to peer its client
                remembers it, and refuses the half under another fence.
        """
        skipped = self._get_visit_file(visit).with_suffix(".skipped")
        if skipped.exists():
            return Skipped(_read_reason(skipped))
        if not self._get_visit_file(visit).exists():
            return None
        tensors, facts = _read_visit(self._get_visit_file(visit))
        if facts["start"] != _compute_fingerprint(visit.x):  # of another history: a checkpoint was damaged
            return None
        x, loss = _rebuild_state(visit.x, tensors, facts), float.fromhex(facts["loss"])
        if abs(loss) > LARGEST_LOSS:  # of an earlier version, which did not check it
            raise _build_damage_error(self._get_visit_file(visit))
        return Done(x, Cost(facts["up"], facts["down"], loss))

    def save_made(self, r: int, name: str, made: bytes) -> None:
        """Save bytes that were made in round r, such as an average, so that they are not made twice."""
        with replace_atomically(self._get_result_file(r, name), private=True) as temporary:
            temporary.write_bytes(made + xxh3_128(made).digest())

    def load_made(self, r: int, name: str) -> bytes | None:
        """Return what was saved for round r under this name, or None. Raise InputError if it is damaged."""
        file = self._get_result_file(r, name)
        if not file.exists():
            return None
        content = file.read_bytes()
        made = content[:-DIGEST]
        if len(content) < DIGEST or xxh3_128(made).digest() != content[-DIGEST:]:
            raise _build_damage_error(file)
        return made

    def discard_made(self, r: int, name: str) -> None:
        """Remove what was made in round r under this name: it will be made again."""
        self._get_result_file(r, name).unlink(missing_ok=True)

    def remove_rounds(self, before: int) -> None:
        """Remove the rounds before r, which are in a checkpoint."""
        for file in self._list_files():
            if int(file.name[1:8]) < before:
                file.unlink(missing_ok=True)

    def list_files_from(self, r: int) -> list[Path]:
        """List the files of round r and of all rounds after it."""
        return sorted(file for file in self._list_files() if int(file.name[1:8]) >= r)

    def list_faults(self) -> list[dict[str, Any]]:
        """Return the newest faults, see EventLog.list_faults."""
        return self._log.list_faults()

    def note(self, event: str, source: Any = None, **facts: Any) -> None:
        """Write one line of events.jsonl, see EventLog.note."""
        self._log.note(event, source, **facts)

    def _list_files(self) -> Iterator[Path]:
        """Yield the files of visits, and of what was made in rounds."""
        return self.folder.glob("r" + "[0-9]" * 7 + "-*")

    def _get_result_file(self, r: int, name: str) -> Path:
        return self.folder / f"r{r:07d}-{name}"

    def _get_visit_file(self, visit: Visit[Any]) -> Path:
        return self.folder / f"r{visit.r:07d}-m{visit.m:05d}-i{visit.i}.safetensors"


def _split_state(x: Any) -> tuple[dict[str, torch.Tensor], dict[str, int]]:
    """Return the tensors and numbers of x, which is a tensor or a record (peer to peer)."""
    if isinstance(x, torch.Tensor):
        return {"x": x.contiguous()}, {}
    parts = vars(x)
    tensors = {name: part.contiguous() for name, part in parts.items() if isinstance(part, torch.Tensor)}
    return tensors, {name: part for name, part in parts.items() if not isinstance(part, torch.Tensor)}


def _rebuild_state(like: Any, tensors: dict[str, torch.Tensor], facts: dict[str, Any]) -> Any:
    if isinstance(like, torch.Tensor):
        return tensors["x"]
    return type(like)(**{name: tensors.get(name, facts.get(name)) for name in vars(like)})


def _read_reason(file: Path) -> str:
    """Read why a visit was skipped."""
    try:
        content = parse_json(file.read_text(encoding="utf-8"))
        why = str(content["why"])
        if content[CHECKSUM] == xxh3_128(why.encode()).hexdigest():
            return why
    except (ValueError, KeyError, TypeError):
        pass
    raise _build_damage_error(file)


def _read_visit(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Return the tensors and the facts of a committed visit. Raise InputError if the file is damaged."""
    try:
        with safe_open(path, "pt") as file:
            facts = {name: parse_json(value) for name, value in file.metadata().items()}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        expected = facts.pop(CHECKSUM)
    except (SafetensorError, ValueError, KeyError, AttributeError):
        raise _build_damage_error(path) from None
    if _compute_checksum(tensors, facts) != expected:
        raise _build_damage_error(path)
    return tensors, facts


def _compute_checksum(tensors: dict[str, torch.Tensor], facts: dict[str, Any]) -> str:
    """Return a digest of the content of a visit's file: facts, names, types, shapes and numbers."""
    digest = xxh3_128(json.dumps(facts, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().numpy().data)
    return digest.hexdigest()


def _build_damage_error(file: Path) -> InputError:
    r = int(file.name[1:8])
    back = f"Go back with serve --back-to {r}, or to an earlier round that has a checkpoint."
    remove = "Or remove the file: the visit is made again (peer to peer, start clients and fed server again too)."
    return InputError(f"{file} is damaged", hint=f"{back} {remove}")


def _compute_fingerprint(x: Any) -> int:
    """Return a digest of all of x. The same half under another fence has another digest."""
    tensors, numbers = _split_state(x)
    digest = xxh3_64(json.dumps(numbers).encode())
    for tensor in tensors.values():
        digest.update(tensor.numpy().data)
    return digest.intdigest()
