"""python -m tests.rehearse_zoo [--out FOLDER] [NAME...]: every module of the zoo whole, cut and deployed, to the bit.

For each module: simulate the whole model and the cut model, then rehearse the cut model with a server and two clients
as programs of their own over mutual TLS, and compare all weights and rows. A finished module has a file verdict.json in
its folder and is not repeated, so an interrupted study continues. Remove a folder to repeat its module. The exit code
is 1 if a module differs or fails.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from splitrelay.deploy.rehearsal import Rehearsal, RehearsalOptions
from splitrelay.errors import SplitrelayError
from splitrelay.models import get_model_spec
from splitrelay.randomness import Purpose, rng
from splitrelay.runs.execute import execute
from splitrelay.runs.run_directory import RunDirectory
from splitrelay.runs.spec import Spec, make_spec
from tests.support.module_zoo import CLASSES, ZOO

MODULE = "tests.rehearse_zoo"  # also where it runs as __main__
N, TOKENS = 40, 11
SETTINGS: dict[str, Any] = {
    "read_as": "samples", "partition": "iid", "M": 2, "K": 3, "R": 2, "batch": 5, "engine": "reference",
    "eta": 0.05, "clip": 1.0, "momentum": 0.9, "weight_decay": 0.01,
}  # fmt: skip
VERDICT = "verdict.json"


def get_slug(name: str) -> str:
    """Return the name of a module as a Python name."""
    return re.sub(r"\W+", "_", name)


def __getattr__(slug: str) -> object:
    """Return the function of model=tests.rehearse_zoo:SLUG."""
    for name, (build, _) in ZOO.items():
        if get_slug(name) == slug:
            return build
    raise AttributeError(slug)


def write_samples(name: str, path: Path) -> None:
    """Write random inputs of the types of a module, and classes."""
    generator, y = rng(3, Purpose.INSTANCES), np.arange(N) % CLASSES
    types = ZOO[name][1]
    arrays = {}
    for number, each in enumerate(types, 1):
        shape = (N, *each.shape)
        key = f"x{number}" if len(types) > 1 else "x"
        is_float = each.is_float
        arrays[key] = generator.random(shape, "float32") if is_float else generator.integers(0, TOKENS, shape)
    np.savez(path, y=y, **arrays)


def make_cut_spec(name: str, data: Path) -> Spec:
    """Return the spec of a run that is cut in the middle of the model."""
    build, inputs = ZOO[name]
    cut = len(get_model_spec(build, inputs, CLASSES).layers()) // 2
    model = f"{MODULE}:{get_slug(name)}"
    return make_spec(data=str(data), model=model, cut=max(cut, 1), placement="cut", **SETTINGS)


def rehearse(name: str, folder: Path) -> dict[str, Any]:
    """Run a module in three ways and return which results are the same."""
    if folder.exists():
        shutil.rmtree(folder)  # of an interrupted study
    folder.mkdir(parents=True)
    write_samples(name, folder / "samples.npz")
    spec = make_cut_spec(name, folder / "samples.npz")
    whole = RunDirectory(folder / "whole")
    began = time.monotonic()
    list(execute(spec.model_copy(update={"placement": "whole"}), whole))
    verdict = Rehearsal(RehearsalOptions(spec, folder / "deployed"), lambda message: None).run()
    deployed = RunDirectory(folder / "deployed")
    return {
        "module": name,
        "cut": spec.model.cut,
        "whole": whole.model.read_bytes() == deployed.model.read_bytes(),
        "weights": verdict.weights,
        "rows": verdict.rows,
        "seconds": round(time.monotonic() - began, 1),
    }


def study(name: str, folder: Path) -> dict[str, Any]:
    """Return the verdict on a module: the stored one if it is finished, else that of a new rehearsal."""
    file = folder / VERDICT
    if file.exists():
        stored: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return stored
    try:
        verdict = rehearse(name, folder)
    except SplitrelayError as error:
        return {"module": name, "whole": False, "weights": False, "rows": False, "error": str(error)}
    file.write_text(json.dumps(verdict) + "\n", encoding="utf-8")
    return verdict


def main() -> None:
    """Rehearse the named modules, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--out", type=Path, default=Path("results/zoo"), help="folder of the runs (default: %(default)s)"
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"modules, all by default: {', '.join(ZOO)}")
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in ZOO]
    if unknown:
        parser.error(f"unknown module {unknown[0]!r}; known: {', '.join(ZOO)}")
    names = options.names or list(ZOO)
    same = 0
    for number, name in enumerate(names, 1):
        verdict = study(name, options.out / get_slug(name))
        is_same = verdict["whole"] and verdict["weights"] and verdict["rows"]
        same += is_same
        facts = ", ".join(f"{key}: {value}" for key, value in verdict.items() if key != "module")
        print(f"{number:>3}/{len(names)} {'same' if is_same else 'DIFFERENT':<9} {name}: {facts}", flush=True)
    print(f"{same} of {len(names)} modules are the same whole, cut and deployed")
    sys.exit(same < len(names))


if __name__ == "__main__":
    main()
