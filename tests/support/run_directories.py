"""Run directories written by hand: rows whose means and spreads one can work out."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from splitrelay.runs.records import Run, run_at
from splitrelay.runs.spec import load_spec

CELL = ("data=mnist", "model=lenet5", "M=500", "S=10", "K=10")


def row(r: int, accuracy: float, **more: Any) -> dict[str, Any]:
    """A row of rounds.jsonl: a million bytes up and half a million down in each round, a tenth of a second."""
    return {
        "round": r,
        "test_accuracy": accuracy,
        "test_loss": 2.5 * (1 - accuracy),
        "test_per_class": [accuracy, None, 1 - accuracy],
        "train_loss": None if r == 0 else 1 - accuracy,
        "bytes_up": 1_000_000 * r,
        "bytes_down": 500_000 * r,
        "seconds": 0.1 * r,
        **more,
    }


def write_run(path: Path, accuracies: Sequence[float] | Mapping[int, float], *words: str, **more: Any) -> Run:
    """A run whose rounds 0, 1, ... (or those named) have these accuracies; R is the last of them unless said."""
    seen = dict(accuracies) if isinstance(accuracies, Mapping) else dict(enumerate(accuracies))
    ends = [f"R={max(seen)}"] if seen and not any(word.startswith("R=") for word in words) else []
    path.mkdir(parents=True)
    (path / "spec.toml").write_text(load_spec(None, [*CELL, *words, *ends]).to_toml() + "\n")
    (path / "rounds.jsonl").write_text("".join(json.dumps(row(r, a, **more)) + "\n" for r, a in seen.items()))
    return run_at(path)
