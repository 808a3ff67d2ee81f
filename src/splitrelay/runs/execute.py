"""A spec run in a directory: begun, or taken up where it stopped, with the same bits either way."""

from __future__ import annotations

import hashlib
import json
import math
import platform
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from threading import Event
from typing import Any

from splitrelay import __version__
from splitrelay.atomic_files import write_text
from splitrelay.data import load, save_partition
from splitrelay.data.images import DataSet
from splitrelay.data.partition import Partition
from splitrelay.data.partition_schemes import SCHEMES, draw_partition, list_settings
from splitrelay.engine import Flaky
from splitrelay.engine.select import resolve_engine
from splitrelay.errors import Diverged, InputError, UnknownName
from splitrelay.models import get_model_spec
from splitrelay.models.weights_io import save_weights
from splitrelay.objectives.batches import Batches
from splitrelay.reports.html_report import write_report
from splitrelay.runs.client_records import Skip
from splitrelay.runs.damage import again
from splitrelay.runs.host import cpu_name
from splitrelay.runs.run_directory import RunDirectory
from splitrelay.runs.spec import Spec, spec_of
from splitrelay.runs.trainer import Learning, Look, Trial


@dataclass(frozen=True)
class Progress:
    """One look at a run; `again` marks rows that an earlier process wrote."""

    row: dict[str, Any]
    again: bool = False


def trial_of(spec: Spec, device: str = "cpu") -> Trial:
    """What the learning needs of a spec."""
    step, model, data = spec.optimiser, spec.model, spec.data
    same = ("algorithm", "K", "tau", "S", "order", "placement", "gamma", "weighted", "G", "seed", "engine")
    of_step = ("eta", "weight_decay", "clip", "per_half", "momentum")
    return Trial(
        **{name: getattr(spec, name) for name in same},
        **{name: getattr(step, name) for name in of_step},
        **{name: getattr(model, name) for name in ("cut", "init", "loss", "dtype")},
        model=model.name,
        batches=Batches(step.batch, step.draw),
        augment=data.augment,
        validation=data.validation,
        device=device,
    )


def resolved(spec: Spec, device: str = "cpu", data: DataSet | None = None) -> tuple[Spec, str]:
    """The spec with its engine written out, which is part of the run's name; and why it is this one."""
    if spec.engine == "reference":
        return spec, "as asked"
    images, model = (data or load(spec.data.name)).train, spec.model
    plan = get_model_spec(model.name, images.shape, len(images.classes), model.cut)
    engine, why = resolve_engine(spec.engine, plan, dtype=model.dtype, loss=model.loss, device=device)
    return spec.model_copy(update={"engine": engine}), why


def partition_of(spec: Spec, data: DataSet) -> Partition:
    """Who holds what."""
    part = spec.partition
    if part.kind not in SCHEMES:
        raise UnknownName("partition", part.kind, SCHEMES)
    wanted = {**part.model_dump(), "seed": spec.seed if part.seed is None else part.seed}
    return draw_partition(part.kind, data.train.y, **{k: v for k, v in wanted.items() if k in list_settings(part.kind)})


def prepared(
    spec: Spec, *, device: str = "cpu", data: DataSet | None = None, absent: frozenset[int] = frozenset(), **how: Any
) -> tuple[Learning, Partition]:
    """Data, partition, model and clients of a spec; whatever cannot work is refused here, before anything starts.

    `absent` clients take no part: they hold nothing, as in a deployed run that began without them.
    """
    data = data or load(spec.data.name)
    partition = partition_of(spec, data)
    if absent:
        indices = tuple(held[:0] if m in absent else held for m, held in enumerate(partition.indices))
        partition = replace(partition, indices=indices)
    return Learning(trial_of(spec, device), data, partition, **how), partition


def execute(
    spec: Spec,
    directory: RunDirectory,
    *,
    checkpoint: int = 10,
    stop: Event | None = None,
    skips: frozenset[Skip] = frozenset(),
    from_scratch: bool = False,
    **how: Any,
) -> Iterator[Progress]:
    """All rows of the run: those that are there already, then those that are still to come.

    Rows are written before the checkpoint of their round, and a checkpoint counts only when its manifest is there:
    so after any kill the rows up to the newest checkpoint are whole, and the rest is computed again, bit for bit.
    `stop`, once set, ends the run after the visit it is at; `how` is device, absent, and workers or clients. Visits in
    `skips` are left out, as a server left them out whose clients stayed away. Where a run that is there cannot be taken
    up, because its checkpoints or rows are damaged, it is refused; `from_scratch` sets what is there aside and begins
    at round 0. A directory that `splitrelay serve` made is refused: a simulation would replace what clients trained.
    """
    check_simulated(directory)
    data = None if spec.engine == "reference" else load(spec.data.name)  # a set of one's own takes a while to read
    spec, _ = resolved(spec, how.get("device", "cpu"), data)
    with directory.locked():
        _agree(spec, directory)
        if from_scratch:
            directory.set_aside("from-scratch", results_of(directory))
        if directory.finished(spec.R):
            yield from (Progress(row, again=True) for row in directory.seen())
            _epilogue(directory)
            return
        learning, partition = prepared(spec, data=data, stop=stop, **how)
        if skips:
            learning.clients.clients = Flaky(
                learning.clients.clients, lambda visit: (visit.r, visit.m, visit.i) in skips
            )
        start = _taken_up(spec, directory, learning)
        rows = directory.cut_back(start[0] if start else -1)
        yield from (Progress(row, again=True) for row in rows)
        if not directory.spec.exists() or start is None:
            save_partition(partition, directory.path / "partition.npz")
        write_text(directory.spec, spec.toml() + "\n")
        write_text(directory.path / "environment.json", json.dumps(environment(), indent=2) + "\n")
        before = rows[-1]["seconds"] if rows else 0.0
        directory.diverged.unlink(missing_ok=True)
        try:
            yield from _going_on(spec, directory, learning, start, checkpoint, before)
        except Diverged as error:
            write_text(directory.diverged, f"{error}\n")  # a result too
            raise


def _going_on(
    spec: Spec,
    directory: RunDirectory,
    learning: Learning,
    start: tuple[int, Any] | None,
    checkpoint: int,
    before: float,
) -> Iterator[Progress]:
    kept = start[0] if start else 0
    looks = learning.run(spec.R, spec.every, start=start)
    if start:
        next(looks)  # its row is there already
    last: tuple[Look, Any] | None = None
    try:
        for look, state in looks:
            row = row_of(look, before)
            directory.append(row, flush=False)
            last = look, state
            yield Progress(row)
            if look.r > kept and look.r % (checkpoint * spec.every) == 0:
                _keep(directory, look, state)
                kept = look.r
    finally:  # Ctrl-C and NaN too: nothing that was finished is lost
        if last and last[0].r > kept and last[0].r % spec.every == 0:
            _keep(directory, *last)
    _finish(directory, learning, last[1] if last else start[1] if start else None)


def _keep(directory: RunDirectory, look: Look, state: Any) -> None:
    """Rows go to the disk before the checkpoint that counts on them; those after it would be made again anyhow."""
    directory.flush()
    directory.checkpoints.save(look.r, state, look.up, look.down)


def _finish(directory: RunDirectory, learning: Learning, state: Any) -> None:
    """The model comes last: with it the run is finished."""
    directory.flush()
    directory.table()
    layout = learning.model_spec.layout(learning.network.dtype)
    save_weights(directory.model, layout, learning.algorithm.model(state))
    _epilogue(directory)


def _epilogue(directory: RunDirectory) -> None:
    """What can be made again from a finished run; a kill may have come between."""
    if not directory.model.exists():  # a published record
        return
    digest, report = directory.digest, directory.path / "report.html"
    finished = directory.model.stat().st_mtime_ns
    if not digest.exists() or digest.stat().st_mtime_ns < finished:  # for records published without weights
        write_text(digest, hashlib.sha256(directory.model.read_bytes()).hexdigest() + "\n")
    if not report.exists() or report.stat().st_mtime_ns < finished:
        write_report(directory.path)


def check_simulated(directory: RunDirectory) -> None:
    """Raise InputError for the directory of a deployed run."""
    if directory.is_deployed:
        hint = f"Choose another --out for a simulation. The run itself goes on with: {again(directory.path)}"
        raise InputError(f"{directory.path} holds a deployed run, made by splitrelay serve", hint=hint)


def results_of(directory: RunDirectory) -> list[Path]:
    """List all that a run has written, but for its spec: manifests of checkpoints first."""
    named = ("rounds.csv", "report.html", "partition.npz", "environment.json")
    ends = (directory.rounds, directory.model, directory.digest, directory.diverged)
    return [*directory.checkpoints.files_after(-1), *ends, *(directory.path / name for name in named)]


def _agree(spec: Spec, directory: RunDirectory) -> None:
    """The directory belongs to this spec, or is new; more rounds than before extend it."""
    if not directory.spec.exists():
        return
    before = spec_of(directory.spec)
    if before.hash != spec.hash:
        hint = f"Choose another --out; it was made by {directory.spec}."
        raise InputError(f"{directory.path} holds another run, {before.hash}", value=spec.hash, hint=hint)
    if spec.R < before.R:
        raise InputError(f"{directory.path} has been run for R={before.R}", value=f"R={spec.R}", hint="Take no fewer.")


def _taken_up(spec: Spec, directory: RunDirectory, learning: Learning) -> tuple[int, Any] | None:
    """(r, state) of the newest checkpoint whose row is there, and the byte counters set back to it."""
    seen = {row["round"] for row in directory.seen()}
    found = directory.checkpoints.newest(learning.algorithm.init(learning.x0()), at_most=spec.R)
    directory.check_progress(None if found is None else found[0].round)
    if found is None or found[0].round not in seen:
        return None
    learning.clients.up, learning.clients.down = found[0].up, found[0].down
    return found[0].round, found[1]


def row_of(look: Look, before: float = 0.0) -> dict[str, Any]:
    """A row of rounds.jsonl. Nothing in it but `seconds` depends on time, host or resuming.

    `before`: what earlier processes took up to the checkpoint from which this one went on.
    """
    kept = look.validation
    return {
        "round": look.r,
        "test_accuracy": look.score.accuracy,
        "test_loss": look.score.loss,
        "test_per_class": [None if math.isnan(share) else share for share in look.score.per_class],
        **({"validation_accuracy": kept.accuracy, "validation_loss": kept.loss} if kept else {}),
        "train_loss": None if look.r == 0 else look.train_loss,
        "bytes_up": look.up,
        "bytes_down": look.down,
        "seconds": before + look.seconds,
    }


def environment() -> dict[str, str]:
    """What ran it: equality to the bit is promised for the same."""
    packages = {name: version(name) for name in ("torch", "numpy", "safetensors")}
    host = {"python": platform.python_version(), "machine": platform.machine(), "system": platform.platform()}
    return {"splitrelay": __version__, **packages, **host, "cpu": cpu_name()}
