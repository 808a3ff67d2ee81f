"""`splitrelay run`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

import click

from splitrelay.cli.click_extensions import Command
from splitrelay.cli.console import note, say
from splitrelay.cli.key_values import settings_argument
from splitrelay.cli.signals import stopping
from splitrelay.cli.spec_arguments import list_spec_keys, load_spec_arguments
from splitrelay.cli.table_output import Table, emit, format_option
from splitrelay.errors import InputError

if TYPE_CHECKING:
    from splitrelay.runs.execute import Progress
    from splitrelay.runs.spec import Spec

HERE = "local"
COLUMNS = "round  accuracy  test loss  train loss   MB up  MB down  seconds     left"


@click.command(cls=Command, keys=list_spec_keys, example="splitrelay run algorithm=ssl C=1 R=5 K=5 eta=0.1")
@settings_argument(list_spec_keys, metavar="[SPEC] [KEY=VALUE]...")
@click.option("--out", type=click.Path(path_type=Path), help="The run's directory (default: results/ and its name).")
@click.option("--print-spec", is_flag=True, help="Print the whole spec as TOML, and do nothing.")
@click.option("--workers", type=click.IntRange(min=1), default=1, show_default=True,
              help="Clients trained at once, where the algorithm allows.")  # fmt: skip
@click.option("--clients", default=HERE, show_default=True, metavar="local|ray|ADDRESS",
              help="Where visits are made, with the same bits: here, on a Ray started here or elsewhere.")  # fmt: skip
@click.option("--device", default="cpu", show_default=True, help="cpu, cuda or mps.")
@click.option(
    "--checkpoint", type=click.IntRange(min=1), default=10, show_default=True, help="Looks between two of them."
)
@click.option("--from-scratch", is_flag=True,
              help="Begin at round 0; what the directory has is set aside.")  # fmt: skip
@format_option
def run(settings: Sequence[str], out: Path | None, print_spec: bool, clients: str, shape: str, **how: Any) -> None:
    """Train on images: one algorithm, one model, one partition of one data set; a row for every round.

    SPEC is a TOML file (--print-spec writes one); key=value words go on top of it. The run is a directory: spec.toml,
    rounds.jsonl, rounds.csv, partition.npz, checkpoints, and the final model.safetensors, which plain torch loads.
    Where the directory is there already, the run is taken up where it stopped, and ends with the same bits.
    """
    from splitrelay.runs.execute import check_is_simulation, execute
    from splitrelay.runs.rows import load_rows
    from splitrelay.runs.run_directory import RunDirectory, format_resume_command

    spec = _resolved(load_spec_arguments("run", settings), how["device"])
    if print_spec:
        say(spec.to_toml())
        return
    directory = RunDirectory(out or Path("results") / f"{spec.algorithm}-{spec.hash}")
    check_is_simulation(directory)
    if not how["from_scratch"]:
        load_rows(directory.path)  # a record that is damaged is said with its line
    rows = []
    try:
        with stopping() as stop, _elsewhere(clients, spec, stop) as there:
            for progress in _shown(execute(spec, directory, stop=stop, **how, **there), spec.R, shape):
                rows.append(progress.row)
    except KeyboardInterrupt:
        note(f"kept in {directory.path}. Go on with: {format_resume_command(directory.path)}")
        raise
    if shape in ("json", "csv", "markdown"):
        emit(_table(rows), rows, shape)
    note(f"kept: {directory.path}")


@contextmanager
def _elsewhere(clients: str, spec: Spec, stop: Event) -> Iterator[dict[str, Any]]:
    """The clients of the run, if they are not here."""
    if clients == HERE:
        yield {}
        return
    from splitrelay.sweeps.ray_backend import check_address

    with at_hand("ray"):
        from splitrelay.sweeps.ray_clients import open_ray_clients
    with open_ray_clients(spec, check_address(clients), stop) as there:
        yield {"clients": there}


@contextmanager
def at_hand(package: str) -> Iterator[None]:
    """An extra that is not installed is said with the way to it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise InputError(f"{package} is not installed here", hint=f"pip install 'splitrelay[{package}]'.") from None


def _resolved(spec: Spec, device: str) -> Spec:
    """The engine is written out, and where auto could not take the fast one a line says why."""
    from splitrelay.runs.build import get_device, resolve_spec

    get_device(device)  # a device that is none is no reason for an engine
    found, why = resolve_spec(spec, device)
    if spec.engine == "auto" and found.engine == "reference":
        note(f"engine=reference: {why}")
    return found


def _shown(all_progress: Iterable[Progress], R: int, shape: str) -> Iterator[Progress]:
    """Each row as a line, with the time that is left."""
    started, first = time.perf_counter(), 0
    for number, progress in enumerate(all_progress):
        if number == 0 and shape == "table":
            say(COLUMNS)  # with the first row: whatever is refused is refused before it
        r = progress.row["round"]
        first = r if progress.is_old else first
        new = r - first
        left = (time.perf_counter() - started) / new * (R - r) if new else None
        if shape == "table":
            say(_line(progress.row, left))
        yield progress


def _line(row: dict[str, Any], left: float | None) -> str:
    trained = "-" if row["train_loss"] is None else f"{row['train_loss']:.4f}"
    numbers = f"{row['round']:>5} {row['test_accuracy']:>9.2%} {row['test_loss']:>10.4f} {trained:>11}"
    traffic = f"{row['bytes_up'] / 1e6:>7.1f} {row['bytes_down'] / 1e6:>8.1f} {row['seconds']:>8.1f}"
    return f"{numbers} {traffic} {'' if left is None else f'{left:>7.0f} s'}".rstrip()


def _table(rows: Sequence[dict[str, Any]]) -> Table:
    return Table(tuple(rows[0]), [tuple(map(_flat, row.values())) for row in rows])


def _flat(value: Any) -> Any:
    return " ".join(f"{part:.4f}" for part in value) if isinstance(value, list) else value
