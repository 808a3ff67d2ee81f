"""Run a spec in a run directory: start it, or continue it from its newest checkpoint with the same bits.

Rules for files. Rows are on the disk before the checkpoint of their round. A checkpoint counts only if its manifest
exists, and the manifest is written last. After any kill, the rows up to the newest checkpoint are therefore complete,
and the rounds after it are computed again, bit for bit. The final model is written last: a run with a model is
finished.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event
from typing import Any

import torch

from splitrelay.algorithms.base import Clients
from splitrelay.atomic_files import write_text
from splitrelay.data import save_partition
from splitrelay.data.images import DataSet
from splitrelay.data.partition import Partition
from splitrelay.engine import Flaky
from splitrelay.errors import Diverged, InputError
from splitrelay.models.weights_io import save_weights
from splitrelay.reports.html_report import write_report
from splitrelay.runs.build import build_partition, load_data, resolve_spec
from splitrelay.runs.checkpoint import check_state
from splitrelay.runs.client_records import Skip
from splitrelay.runs.machine import describe_environment
from splitrelay.runs.run_directory import Row, RunDirectory, build_row, format_resume_command
from splitrelay.runs.sources import check_constants, check_sources, describe_sources
from splitrelay.runs.spec import Spec, load_spec
from splitrelay.runs.trainer import EvaluationRow, Trainer, describe_computation


@dataclass(frozen=True)
class Progress:
    """One row of a run. `is_old` marks rows that an earlier process wrote."""

    row: Row
    is_old: bool = False


@dataclass(frozen=True)
class RunHooks:
    """What a deployed run does differently from a simulation. The defaults are those of a simulation."""

    make_state: Callable[[], Any] | None = None  # state before round 1; default: the algorithm's, from x0
    back_to: int | None = None  # a checkpoint of this round is used even if its row is missing
    on_start: Callable[[tuple[int, Any] | None], None] = lambda start: None  # gets (r, state) to continue from, or None
    check: Callable[[int, Any], None] = lambda r, state: None  # may refuse a state before its row is written
    get_fields: Callable[[int], Row] = lambda r: {}  # fields to add to the row of round r
    on_checkpoint: Callable[[int, Any], None] = lambda r, state: None  # gets a checkpoint that is complete
    save_model: Callable[[Any], None] | None = None  # gets the final state; default: write model.safetensors
    has_initial_checkpoint: bool = False  # write a checkpoint of round 0 as well
    run: str = ""  # name of the run in its checkpoints; default: the identity of the spec
    overlap: bool = True  # evaluate while the next rounds run


def build_trainer(
    spec: Spec,
    *,
    data: DataSet | None = None,
    device: str = "cpu",
    absent: frozenset[int] = frozenset(),
    **options: Any,
) -> tuple[Trainer, Partition]:
    """Load the data of a spec, divide it, and build the trainer.

    Args:
        spec: The settings.
        data: The images, if they are loaded already.
        device: The torch device.
        absent: Clients without samples, as in a deployed run that began without them.
        options: Further options of `Trainer`.
    """
    data = data or load_data(spec.data)
    partition = build_partition(spec, data)
    if absent:
        indices = tuple(samples[:0] if m in absent else samples for m, samples in enumerate(partition.indices))
        partition = replace(partition, indices=indices)
    return Trainer(spec, data, partition, device=device, **options), partition


def execute(
    spec: Spec,
    directory: RunDirectory,
    *,
    checkpoint: int = 10,
    stop: Event | None = None,
    skips: frozenset[Skip] = frozenset(),
    absent: frozenset[int] = frozenset(),
    from_scratch: bool = False,
    accept_change: bool = False,
    device: str = "cpu",
    workers: int = 1,
    clients: Clients[torch.Tensor] | None = None,
) -> Iterator[Progress]:
    """Simulate a run in its directory and yield all its rows: those on the disk, then the new ones.

    Args:
        spec: The settings.
        directory: A new directory, or that of the same run.
        checkpoint: Evaluations between two checkpoints.
        stop: Once set, the run ends after the current visit, with KeyboardInterrupt.
        skips: Visits to leave out, as the server of a deployed run did.
        absent: Clients that take no part, as in a deployed run that began without them.
        accept_change: Continue although the user's code or data have changed, and record the change.
        from_scratch: Move earlier results into the folder set-aside, and start at round 0.
        device: The torch device.
        workers: Clients that train at the same time in this process.
        clients: Where visits are made, instead of this process.

    Raises:
        InputError: The directory has another run, a deployed run, or files that cannot be read.
        Diverged: A loss or weight became infinite or NaN. The reason is written to diverged.txt.
    """
    check_is_simulation(directory)
    spec = keep_threads(spec, directory)
    data = None if spec.engine == "reference" else load_data(spec.data)  # loading can be slow: load at most once
    spec, _ = resolve_spec(spec, device, data)
    with directory.locked():
        _check_same_run(spec, directory)
        if from_scratch:
            directory.set_aside("from-scratch", list_results(directory))
        if not accept_change:
            check_sources(spec, directory)
        if directory.is_finished(spec.R):
            yield from (Progress(row, is_old=True) for row in directory.read_rows())
        else:
            trainer, partition = build_trainer(
                spec, data=data, device=device, absent=absent, stop=stop, workers=workers, clients=clients
            )
            if skips:
                made = trainer.clients.clients
                trainer.clients.clients = Flaky(made, lambda visit: (visit.r, visit.m, visit.i) in skips)
            try:
                yield from train_in_directory(
                    spec,
                    directory,
                    trainer,
                    checkpoint=checkpoint,
                    partition=partition,
                    accept_change=accept_change,
                )
            except Diverged as error:
                write_text(directory.diverged, f"{error}\n")
                raise
        _write_summaries(directory)


def train_in_directory(
    spec: Spec,
    directory: RunDirectory,
    trainer: Trainer,
    *,
    checkpoint: int = 1,
    partition: Partition | None = None,
    hooks: RunHooks | None = None,
    accept_change: bool = False,
) -> Iterator[Progress]:
    """Train until round R and keep the directory up to date. The caller holds the lock of the directory.

    This is the loop of simulated and of deployed runs. They differ in the clients of the trainer and in the hooks.

    Args:
        spec: The resolved spec.
        directory: The directory of the run.
        trainer: The trainer of the spec.
        checkpoint: Evaluations between two checkpoints.
        partition: Written to the directory if given.
        hooks: Changes for a deployed run.
        accept_change: Continue although the constants of the model have changed.

    Yields:
        All rows. A new row is yielded after its checkpoint, if it has one.
    """
    hooks = hooks or RunHooks()
    if not accept_change:
        check_constants(trainer.model_spec, directory.path)
    make_state = hooks.make_state or (lambda: trainer.algorithm.init(trainer.x0()))
    run = hooks.run or spec.identity
    start = _find_start(spec, directory, trainer, make_state, hooks.back_to, run)
    hooks.on_start(start)
    rows = directory.truncate_rows(start[0] if start else -1)
    yield from (Progress(row, is_old=True) for row in rows)
    if partition is not None and (not directory.spec.exists() or start is None):
        save_partition(partition, directory.path / "partition.npz")
    write_text(directory.spec, spec.to_toml() + "\n")
    sources = describe_sources(spec, directory, start[0] if start else 0, trainer.model_spec)
    computation = describe_computation(trainer.network.device, spec.threads or 1)
    environment = {**describe_environment(), **computation, **sources}
    write_text(directory.path / "environment.json", json.dumps(environment, indent=2) + "\n")
    directory.diverged.unlink(missing_ok=True)
    seconds_before = rows[-1]["seconds"] if rows else 0.0
    r, state = start or (0, make_state())
    saved = r if start or not hooks.has_initial_checkpoint else -1
    evaluations = trainer.run(spec.R, spec.every, overlap=hooks.overlap, start=(r, state))
    if start:
        next(evaluations)  # the row of this round is on the disk
    last: EvaluationRow | None = None

    def save(evaluation: EvaluationRow, state: Any) -> None:
        directory.flush_rows()
        directory.checkpoints.save(evaluation.r, state, evaluation.up, evaluation.down, run)
        hooks.on_checkpoint(evaluation.r, state)

    try:
        for evaluation, new_state in evaluations:
            hooks.check(evaluation.r, new_state)
            row = {**build_row(evaluation, seconds_before), **hooks.get_fields(evaluation.r)}
            directory.append_row(row, flush=False)
            last, state = evaluation, new_state
            if last.r > saved and last.r % (checkpoint * spec.every) == 0:
                save(last, state)
                saved = last.r
            yield Progress(row)
    finally:  # after Ctrl-C and divergence, too: keep every round that was evaluated
        if last and last.r > saved and last.r % spec.every == 0:
            save(last, state)
    directory.flush_rows()
    directory.write_csv()
    if hooks.save_model:
        hooks.save_model(state)
    else:
        layout = trainer.model_spec.layout(trainer.network.dtype)
        save_weights(directory.model, layout, trainer.algorithm.model(state))


def _find_start(
    spec: Spec,
    directory: RunDirectory,
    trainer: Trainer,
    make_state: Callable[[], Any],
    back_to: int | None,
    run: str,
) -> tuple[int, Any] | None:
    """Return (r, state) of the newest checkpoint that has a row, and set the byte counters to those of round r."""
    rounds = {row["round"] for row in directory.read_rows()}
    like = make_state()
    check_state(like)  # before the first round, not at the first checkpoint
    newest = directory.checkpoints.load_newest(like, at_most=spec.R, run=run)
    r = None if newest is None else newest[0].round
    if r is None or r != back_to:
        directory.check_progress(r)
    if newest is None or not (r in rounds or r == back_to):
        return None
    manifest, state = newest
    trainer.clients.up, trainer.clients.down = manifest.up, manifest.down
    return manifest.round, state


def _write_summaries(directory: RunDirectory) -> None:
    """Write the model's checksum and the report of a finished run, unless they are newer than the model."""
    if not directory.model.exists():  # a published record has no model
        return
    digest, report = directory.digest, directory.path / "report.html"
    finished = directory.model.stat().st_mtime_ns
    if not digest.exists() or digest.stat().st_mtime_ns < finished:
        write_text(digest, hashlib.sha256(directory.model.read_bytes()).hexdigest() + "\n")
    if not report.exists() or report.stat().st_mtime_ns < finished:
        write_report(directory.path)


def check_is_simulation(directory: RunDirectory) -> None:
    """Raise InputError for the directory of a deployed run, whose results a simulation would replace."""
    if directory.is_deployed:
        hint = f"Choose another --out for a simulation. To continue this run: {format_resume_command(directory.path)}"
        raise InputError(f"{directory.path} has a deployed run, made by splitrelay serve", hint=hint)


def list_results(directory: RunDirectory) -> list[Path]:
    """List all files that a run writes, except its spec. Manifests of checkpoints come first."""
    names = ("rounds.csv", "report.html", "partition.npz", "environment.json")
    ends = (directory.rounds, directory.model, directory.digest, directory.diverged)
    return [*directory.checkpoints.list_files_after(-1), *ends, *(directory.path / name for name in names)]


def keep_threads(spec: Spec, directory: RunDirectory) -> Spec:
    """Return the spec with the number of threads of the run in the directory, if it leaves the number open.

    Another number would give other bits.
    """
    if spec.threads or not directory.spec.exists():
        return spec
    return spec.model_copy(update={"threads": load_spec(directory.spec).threads})


def _check_same_run(spec: Spec, directory: RunDirectory) -> None:
    """Check that the directory is new or has this run, with at most as many rounds."""
    if not directory.spec.exists():
        return
    before = load_spec(directory.spec)
    if before.hash != spec.hash:
        hint = f"Choose another --out. The spec of that run is {directory.spec}."
        raise InputError(f"{directory.path} has another run, {before.hash}", value=spec.hash, hint=hint)
    if spec.R < before.R:
        limit = f"R >= {before.R}"
        raise InputError(f"{directory.path} has been run for more rounds", value=f"R={spec.R}", limit=limit)
