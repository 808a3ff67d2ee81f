"""Compute the results that must never change: weights, rows, spec hashes, frames and checkpoint keys.

    python -m tests.golden.frozen_results            # compare with frozen_results.json
    python -m tests.golden.frozen_results --write    # write it again: only when a change of results is intended

The fast engine gives the same bits on every processor. Torch does not, so the hashes of the reference engine are kept
for each kind of processor that they were computed on.
"""

import hashlib
import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import splitrelay.paper.presets  # noqa: F401  (makes presets available in specs)
from splitrelay.network.codec import encode
from splitrelay.network.messages import Terms
from splitrelay.runs.execute import execute
from splitrelay.runs.machine import get_cpu_name
from splitrelay.runs.registry import ALGORITHMS
from splitrelay.runs.run_directory import RunDirectory, remove_measurements
from splitrelay.runs.spec import Spec, load_spec
from tests.fuzz.mutations import list_messages

TABLE = Path(__file__).with_suffix(".json")
ONLY_CUT = ("splitfed-v2", "splitfed-v3", "sflg")
COMMON = ("M=4", "C=3", "K=2", "R=2", "batch=5", "clip=1", "momentum=0.5")
MODELS = {"fast": "lenet-small", "reference": "mlp"}
SPECS = ("", "algorithm=fedavg placement=whole", "preset=paper/cross-device-mnist-c1-k10", "route=peer-to-peer M=3 C=4")

Result = dict[str, str]


def get_cases() -> dict[str, tuple[str, ...]]:
    """Return the settings of every run, by name: engine, placement and algorithm."""
    cases = {}
    for engine, model in MODELS.items():
        for algorithm in ALGORITHMS:
            for placement in ("cut",) if algorithm in ONLY_CUT else ("cut", "whole"):
                group = ("G=2",) if algorithm in ("sflg", "fedseq") else ()
                words = (f"algorithm={algorithm}", f"placement={placement}", f"engine={engine}", f"model={model}")
                cases[f"{engine} {placement} {algorithm}"] = (*COMMON, *words, *group)
    return cases


def get_processor(engine: str) -> str:
    """Return the kind of processor on which the bits of an engine depend."""
    return "any" if engine == "fast" else f"{get_cpu_name().split()[0]} {torch.backends.cpu.get_cpu_capability()}"


def write_images(folder: Path) -> Path:
    """Write two hundred grey images of ten classes, the same each time."""
    y = np.arange(200) % 10
    pixels = (np.arange(64)[None] * (y[:, None] + 3) + np.arange(200)[:, None]) % 256
    np.savez(folder / "own.npz", x=pixels.reshape(-1, 8, 8).astype(np.uint8), y=y)
    return folder / "own.npz"


def make_spec(case: str, folder: Path) -> Spec:
    """Return the spec of a case, with images under this folder."""
    return load_spec(None, [f"data={write_images(folder)}", *get_cases()[case]])


def hash_rows(rows: list[dict[str, Any]]) -> str:
    """Hash the rows of a run without what was measured."""
    return _sha256(json.dumps([remove_measurements(row) for row in rows]).encode())


def hash_file(path: Path) -> str:
    """Hash a file."""
    return _sha256(path.read_bytes())


def compute_run(case: str, folder: Path, **how: Any) -> Result:
    """Run one case in this process and hash its weights and rows; `how` goes to execute, for example workers."""
    directory = RunDirectory(folder / "run")
    for _ in execute(make_spec(case, folder), directory, **how):
        pass
    return {"weights": hash_file(directory.model), "rows": hash_rows(directory.read_rows())}


def compute_formats() -> dict[str, Any]:
    """Compute what stands on disk and on the wire: spec hashes, one frame of each message, keys of a checkpoint."""
    frames = {}
    for message in list_messages():
        if isinstance(message, Terms):
            message = replace(message, spec="R = 1\n", salt=b"s" * 32)
        frames[message.event] = encode(message).hex()
    with tempfile.TemporaryDirectory() as folder:
        directory = RunDirectory(Path(folder) / "run")
        for _ in execute(make_spec("fast cut scaffold", Path(folder)), directory):
            pass
        manifest = json.loads(next(directory.checkpoints.folder.glob("*.json")).read_text())
        files = sorted(str(path.relative_to(directory.path)) for path in directory.path.rglob("*") if path.is_file())
    hashes = {words: load_spec(None, words.split()).hash for words in SPECS}
    return {"spec hashes": hashes, "frames": frames, "manifest": sorted(manifest), "run directory": files}


def compute_all() -> Iterator[tuple[str, str, Result]]:
    """Yield (case, processor, result) of every run."""
    for case in get_cases():
        with tempfile.TemporaryDirectory() as folder:
            yield case, get_processor(case.split()[0]), compute_run(case, Path(folder))


def read_table() -> dict[str, Any]:
    """Read the frozen results."""
    table: dict[str, Any] = json.loads(TABLE.read_text(encoding="utf-8"))
    return table


def main(words: list[str]) -> int:
    """Compare, or write the table; results of other processors stay in it."""
    table = read_table() if TABLE.exists() else {"runs": {}}
    before = json.dumps(table, sort_keys=True)
    table["formats"] = compute_formats()
    for case, processor, result in compute_all():
        table["runs"].setdefault(case, {})[processor] = result
    changed = json.dumps(table, sort_keys=True) != before
    if words == ["--write"]:
        TABLE.write_text(json.dumps(table, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    print("changed" if changed else "unchanged")
    return int(changed and words != ["--write"])


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
