"""Hashes of the user's code and data, which decide the numbers of a run but are not in its spec.

They are part of environment.json: `sources` has the hash of every file, `changes` what was accepted later. The hash of
a spec does not contain them, so the names of older runs stay the same.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from splitrelay.data.datasets import SETS
from splitrelay.errors import InputError
from splitrelay.runs.code_hashes import Sources, compute_code, hash_path
from splitrelay.runs.packed_records import has_record, read_record
from splitrelay.runs.run_directory import RunDirectory
from splitrelay.runs.spec import Spec, is_partition_file
from splitrelay.structured_text import parse_json

if TYPE_CHECKING:  # reports are written without torch
    from splitrelay.models import ModelSpec


def compute_sources(spec: Spec) -> Sources:
    """Return the hash of every file of the user on which a run depends: modules, data and initial weights.

    A module counts with the modules of its own folder that it imports. Files that do not exist here are left out.
    """
    sources: Sources = {}
    sources.update(compute_code(spec))
    partition = spec.partition.kind if is_partition_file(spec.partition.kind) else None
    test = spec.data.test if isinstance(spec.data.test, str) else None
    paths = (("data", spec.data.name), ("init", spec.model.init), ("test", test), ("partition", partition))
    for kind, path in paths:
        if path is not None and path not in SETS and Path(path).expanduser().exists():
            sources[f"{kind} {path}"] = hash_path(Path(path).expanduser())
    return sources


def read_sources(path: Path) -> tuple[Sources | None, list[dict[str, Any]]]:
    """Return the hashes in the record of a run, or None if it has none, and the changes that were accepted."""
    content = read_environment(path)
    return content.get("sources"), content.get("changes", [])


def read_environment(path: Path) -> dict[str, Any]:
    """Return the content of environment.json in the record of a run; empty if there is no such file.

    Raises:
        InputError: The file is damaged.
    """
    file = path / "environment.json"
    if not has_record(file):
        return {}
    try:
        return dict(parse_json(read_record(file)))
    except (ValueError, TypeError):
        raise InputError(f"{file} is no JSON", hint="Remove it; versions and sources are then not compared.") from None


def describe_sources(spec: Spec, directory: RunDirectory, r: int, model_spec: ModelSpec) -> dict[str, Any]:
    """Return what environment.json says of the user's files and model if the run continues after round r.

    `sources` has the hashes of the files, `constants` the digest of the model's constants, `changes` what was accepted,
    and `start` says where x^0 comes from, if it is not drawn. Each is left out if it is empty.
    """
    sources, environment = compute_sources(spec), read_environment(directory.path)
    recorded, changes = environment.get("sources"), environment.get("changes", [])
    before = {name: (recorded or {}).get(name) for name in find_changes(recorded, sources)}
    if environment.get("constants") not in (None, model_spec.constants_digest):
        before["constants"] = environment["constants"]
    found = {
        "sources": sources,
        "constants": model_spec.constants_digest,
        "changes": [*changes, {"round": r, "before": before}] if before else changes,
        "start": "the weights of the given module" if model_spec.has_own_start else "",
    }
    return {name: value for name, value in found.items() if value}


def check_sources(spec: Spec, directory: RunDirectory) -> None:
    """Raise InputError if a file of the user is not the one with which the run was made so far."""
    changed = find_changes(read_sources(directory.path)[0], compute_sources(spec))
    if changed:
        hint = "Choose another --out, or --from-scratch; --accept-change continues and records the change."
        raise InputError(f"{directory.path} was made with other code or data", value=", ".join(changed), hint=hint)


def check_constants(model_spec: ModelSpec, path: Path) -> None:
    """Raise InputError if the run was made so far with other constants of the model, such as frozen parameters."""
    recorded, digest = read_environment(path).get("constants"), model_spec.constants_digest
    if recorded not in (None, digest):  # records of earlier versions have none
        what = f"{path} was made with other frozen parameters or constants of model {model_spec.name}"
        hint = "Choose another --out, or --from-scratch; --accept-change continues and records the change."
        raise InputError(what, value=digest or "none", limit=recorded, hint=hint)


def find_changes(recorded: Sources | None, sources: Sources) -> list[str]:
    """Return the names of all files that were added, removed or changed. A record without hashes is not compared."""
    if recorded is None:
        return []
    return sorted(name for name in recorded.keys() | sources.keys() if recorded.get(name) != sources.get(name))


def get_sources_digest(sources: Sources) -> str:
    """Return one short hash of all files."""
    return hashlib.sha256(json.dumps(sources, sort_keys=True).encode()).hexdigest()[:8]
