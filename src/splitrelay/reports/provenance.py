"""Write the origin of a figure or table: a JSON file with its runs and the command that makes it again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from splitrelay import __version__
from splitrelay.atomic_files import write_text
from splitrelay.reports.seed_groups import is_complete
from splitrelay.runs.records import Run


def write_provenance(path: Path, runs: Sequence[Run], command: str, said: Sequence[str]) -> Path:
    """Write FILE.json with the caption and notes of FILE, its runs, and the command that makes it again."""
    content = {
        "file": path.name,
        "command": command,
        "splitrelay": __version__,
        "caption": " ".join(said),
        "runs": [_describe_run(run) for run in runs],
    }
    return _write_json(path.with_name(f"{path.name}.json"), content)


def _write_json(path: Path, content: dict[str, Any]) -> Path:
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    return path


def _describe_run(run: Run) -> dict[str, Any]:
    seen = run.rows[-1]["round"] if run.rows else None
    own = {"path": str(run.path), "hash": run.spec.hash, "algorithm": run.spec.algorithm, "seed": run.spec.seed}
    return {**own, "rounds": seen, "R": run.spec.R, "complete": is_complete(run)}
