"""Hashes of the user's code and data, which decide the numbers of a run but are not in its spec.

They are part of environment.json: `sources` has the hash of every file, `changes` what was accepted later. The hash of
a spec does not contain them, so the names of older runs stay the same.
"""

from __future__ import annotations

import ast
import hashlib
import json
import sys
from collections.abc import Iterator
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from splitrelay.data.datasets import SETS
from splitrelay.errors import InputError
from splitrelay.runs.packed_records import has_record, read_record
from splitrelay.runs.run_directory import RunDirectory
from splitrelay.runs.spec import Spec
from splitrelay.structured_text import parse_json

Sources = dict[str, str]  # name of a file: its SHA-256


def compute_sources(spec: Spec) -> Sources:
    """Return the hash of every file of the user on which a run depends: modules, data and initial weights.

    A module counts with the modules of its own folder that it imports. Files that do not exist here are left out.
    """
    sources: Sources = {}
    for name in (spec.model.name, spec.model.loss):
        if ":" in name:
            sources.update(_hash_module(name.partition(":")[0]))
    for kind, path in (("data", spec.data.name), ("init", spec.model.init)):
        if path is not None and path not in SETS and Path(path).expanduser().exists():
            sources[f"{kind} {path}"] = _hash_path(Path(path).expanduser())
    return sources


def read_sources(path: Path) -> tuple[Sources | None, list[dict[str, Any]]]:
    """Return the hashes in the record of a run, or None if it has none, and the changes that were accepted."""
    file = path / "environment.json"
    if not has_record(file):
        return None, []
    try:
        content = parse_json(read_record(file))
    except ValueError:
        raise InputError(f"{file} is no JSON", hint="Remove it, and the sources of the run are not compared.") from None
    return content.get("sources"), content.get("changes", [])


def describe_sources(spec: Spec, directory: RunDirectory, r: int) -> dict[str, Any]:
    """Return what environment.json says of the user's files if the run continues after round r; empty if none."""
    sources = compute_sources(spec)
    recorded, changes = read_sources(directory.path)
    changed = find_changes(recorded, sources)
    if changed:
        changes = [*changes, {"round": r, "before": {name: (recorded or {}).get(name) for name in changed}}]
    return {**({"sources": sources} if sources else {}), **({"changes": changes} if changes else {})}


def check_sources(spec: Spec, directory: RunDirectory) -> None:
    """Raise InputError if a file of the user is not the one with which the run was made so far."""
    changed = find_changes(read_sources(directory.path)[0], compute_sources(spec))
    if changed:
        hint = "Choose another --out, or --from-scratch; --accept-change continues and records the change."
        raise InputError(f"{directory.path} was made with other code or data", value=", ".join(changed), hint=hint)


def find_changes(recorded: Sources | None, sources: Sources) -> list[str]:
    """Return the names of all files that were added, removed or changed. A record without hashes is not compared."""
    if recorded is None:
        return []
    return sorted(name for name in recorded.keys() | sources.keys() if recorded.get(name) != sources.get(name))


def get_sources_digest(sources: Sources) -> str:
    """Return one short hash of all files."""
    return hashlib.sha256(json.dumps(sources, sort_keys=True).encode()).hexdigest()[:8]


def _hash_module(name: str) -> Sources:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)  # as for the import itself
    try:
        found = find_spec(name)
    except (ImportError, ValueError):
        return {}
    if found is None or found.origin is None or not Path(found.origin).is_file():
        return {}
    file = Path(found.origin).resolve()
    top = (
        file.parents[name.count(".") + (file.name == "__init__.py")] if name.count(".") < len(file.parts) - 1 else file
    )
    is_installed = "site-packages" in file.parts
    files = {file} if is_installed else _find_imports(file, top)
    return {f"module {path.relative_to(top).as_posix()}": _hash_path(path) for path in sorted(files)}


def _find_imports(file: Path, top: Path) -> set[Path]:
    """Return a module and all modules of its folder, or of the folders below, that it imports directly or not."""
    found, waiting = {file}, [file]
    while waiting:
        path = waiting.pop()
        new = set(_iterate_imported_files(path, top)) - found
        found |= new
        waiting += new
    return found


def _iterate_imported_files(file: Path, top: Path) -> Iterator[Path]:
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names, base = [alias.name for alias in node.names], top
        elif isinstance(node, ast.ImportFrom):
            prefix = f"{node.module}." if node.module else ""
            names = [node.module or "", *(f"{prefix}{alias.name}" for alias in node.names)]
            base = file.parents[node.level - 1] if node.level else top
        else:
            continue
        for name in filter(None, names):
            parts = name.split(".")
            for length in range(1, len(parts) + 1):
                path = base.joinpath(*parts[:length])
                yield from (each for each in (path.with_suffix(".py"), path / "__init__.py") if each.is_file())


def _hash_path(path: Path) -> str:
    """Return the SHA-256 of a file, or of the names and hashes of all files in a folder."""
    if path.is_dir():
        inside = (each for each in sorted(path.rglob("*")) if each.is_file())
        text = "".join(f"{each.relative_to(path).as_posix()} {_hash_path(each)}\n" for each in inside)
        return hashlib.sha256(text.encode()).hexdigest()
    stat = path.stat()
    return _hash_file(path.resolve(), stat.st_mtime_ns, stat.st_size, stat.st_ino)


@lru_cache(4096)  # the points of a sweep share their data; the other arguments notice a change
def _hash_file(path: Path, *stamp: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
