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
from splitrelay.cli.console import emit, format_option, note, say, stopping
from splitrelay.cli.key_values import settings_argument
from splitrelay.cli.spec_arguments import device_option, list_spec_keys, load_spec_arguments
from splitrelay.errors import InputError
from splitrelay.table import Table

if TYPE_CHECKING:
    from splitrelay.runs.execute import Progress
    from splitrelay.runs.spec import Spec

HERE = "local"


@click.command(cls=Command, keys=list_spec_keys, example="splitrelay run algorithm=ssl C=1 R=5 K=5 eta=0.1")
@settings_argument(list_spec_keys, metavar="[SPEC] [KEY=VALUE]...")
@click.option("--out", type=click.Path(path_type=Path), help="Run directory (default: results/ALGORITHM-HASH).")
@click.option("--print-spec", is_flag=True, help="Print the complete spec as TOML and exit.")
@click.option("--workers", type=click.IntRange(min=1), default=1, show_default=True,
              help="Clients that train at the same time, if the algorithm allows it.")  # fmt: skip
@click.option("--clients", default=HERE, show_default=True, metavar="local|ray|ADDRESS",
              help="Where clients train: in this process or on a Ray cluster. The bits are the same.")  # fmt: skip
@device_option
@click.option(
    "--checkpoint",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    help="Evaluations between two checkpoints.",
)
@click.option("--from-scratch", is_flag=True,
              help="Start at round 0. Earlier results are moved to the folder set-aside.")  # fmt: skip
@click.option("--accept-change", is_flag=True,
              help="Continue although your code or data have changed, and record the change.")  # fmt: skip
@format_option
def run(settings: Sequence[str], out: Path | None, print_spec: bool, clients: str, shape: str, **how: Any) -> None:
    """Train one algorithm and model on one partition of a data set, and print a row for every evaluated round.

    SPEC is a TOML file (splitrelay new writes one). KEY=VALUE settings override it. The run is a directory: spec.toml,
    rounds.jsonl, rounds.csv, partition.npz, checkpoints, and the final model.safetensors, which plain torch loads. If
    the directory exists, the run continues where it stopped, and ends with the same bits.
    """
    from splitrelay.runs.execute import check_is_simulation, execute, keep_threads
    from splitrelay.runs.run_directory import RunDirectory, format_resume_command, has_accuracy, load_rows

    spec = load_spec_arguments("run", settings)
    spec = _resolve(spec if out is None else keep_threads(spec, RunDirectory(out)), how["device"])
    if print_spec:
        say(spec.to_toml())
        return
    directory = RunDirectory(out or Path("results") / f"{spec.algorithm}-{spec.hash}")
    check_is_simulation(directory)
    if not how["from_scratch"]:
        load_rows(directory.path)  # a damaged file is reported with its line
    rows = []
    try:
        with stopping() as stop, _open_clients(clients, spec, stop) as options:
            for progress in _print_rows(execute(spec, directory, stop=stop, **how, **options), spec.R, shape):
                rows.append(progress.row)
    except KeyboardInterrupt:
        note(f"results so far: {directory.path}. To continue: {format_resume_command(directory.path)}")
        raise
    if shape in ("json", "csv", "markdown"):
        emit(Table(tuple(rows[0]), [tuple(map(_flatten, row.values())) for row in rows]), rows, shape)
    elif rows and rows[-1]["round"] and has_accuracy(rows[-1]):
        say(describe_accuracy(rows))
    note(f"kept: {directory.path}")


@contextmanager
def _open_clients(clients: str, spec: Spec, stop: Event) -> Iterator[dict[str, Any]]:
    """Yield the option `clients` of execute if clients train on a Ray cluster, else no option."""
    if clients == HERE:
        yield {}
        return
    from splitrelay.sweeps.ray_backend import check_address

    with require_package("ray"):
        from splitrelay.sweeps.ray_clients import open_ray_clients
    with open_ray_clients(spec, check_address(clients), stop) as actors:
        yield {"clients": actors}


@contextmanager
def require_package(package: str) -> Iterator[None]:
    """Report a missing optional package with the command that installs it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise InputError(f"{package} is not installed here", hint=f"pip install 'splitrelay[{package}]'.") from None


def _resolve(spec: Spec, device: str) -> Spec:
    """Resolve engine and threads. Print the reason if auto cannot use the fast engine, or threads were measured."""
    from splitrelay.runs.build import get_device, resolve_spec

    get_device(device)  # report a wrong device before anything else
    found, why = resolve_spec(spec, device)
    if (spec.engine == "auto" and found.engine == "reference") or not spec.threads:
        note(f"engine={found.engine}: {why}")
    return found


def describe_accuracy(rows: Sequence[dict[str, Any]], *, has_diverged: bool = False) -> str:
    """Return the accuracy of a run and its last evaluation in one line."""
    from splitrelay.runs.run_directory import compute_final_accuracy, describe_final_rounds

    end = rows[-1]
    if has_diverged:
        return f"accuracy: {end['test_accuracy']:.2%}, the last evaluation before the run diverged"
    accuracy, words = compute_final_accuracy(rows), f"last evaluation: {end['test_accuracy']:.2%}"
    if accuracy is None:
        return words
    return f"accuracy, mean of the {describe_final_rounds([end['round']])}: {accuracy:.2%}; {words}"


def _print_rows(all_progress: Iterable[Progress], R: int, shape: str) -> Iterator[Progress]:
    """Print each row as a line, with the estimated time left."""
    started, first = time.perf_counter(), 0
    for number, progress in enumerate(all_progress):
        if number == 0 and shape == "table":
            say(_format_head(progress.row))  # with the first row, so that errors come before it
        r = progress.row["round"]
        first = r if progress.is_old else first
        new = r - first
        left = (time.perf_counter() - started) / new * (R - r) if new else None
        if shape == "table":
            say(_format_line(progress.row, left))
        yield progress


def _format_head(row: dict[str, Any]) -> str:
    from splitrelay.runs.run_directory import has_accuracy, list_metrics

    accuracy = "  accuracy" if has_accuracy(row) else ""
    metrics = "".join(f" {name.removeprefix('test_'):>{_get_width(name)}}" for name in list_metrics(row))
    return f"round{accuracy}  test loss{metrics}  train loss   MB up  MB down  seconds     left"


def _get_width(metric: str) -> int:
    return max(10, len(metric.removeprefix("test_")))


def _format_metric(row: dict[str, Any], name: str) -> str:
    text = "-" if row.get(name) is None else f"{row[name]:.4f}"
    return f" {text:>{_get_width(name)}}"


def _format_line(row: dict[str, Any], left: float | None) -> str:
    from splitrelay.runs.run_directory import has_accuracy, list_metrics

    trained = "-" if row["train_loss"] is None else f"{row['train_loss']:.4f}"
    accuracy = f" {row['test_accuracy']:>9.2%}" if has_accuracy(row) else ""
    metrics = "".join(_format_metric(row, name) for name in list_metrics(row))
    numbers = f"{row['round']:>5}{accuracy} {row['test_loss']:>10.4f}{metrics} {trained:>11}"
    traffic = f"{row['bytes_up'] / 1e6:>7.1f} {row['bytes_down'] / 1e6:>8.1f} {row['seconds']:>8.1f}"
    return f"{numbers} {traffic} {'' if left is None else f'{left:>7.0f} s'}".rstrip()


def _flatten(value: Any) -> Any:
    return " ".join(f"{part:.4f}" for part in value) if isinstance(value, list) else value
