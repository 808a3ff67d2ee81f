"""The commands of `splitrelay partition`: draw a partition, show or export a saved one, draw the paper's figure.

The report of `splitrelay partition`: a plot, a table of measures, and the clients with one class or none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from splitrelay.cli.click_extensions import Command
from splitrelay.cli.console import emit, emphasize, format_option, note, say
from splitrelay.cli.key_values import Key, choice, combinations, count, number, parse_settings, seed, settings_argument
from splitrelay.cli.partition.terminal_plot import choose_marks, get_width, plot_counts
from splitrelay.errors import InputError
from splitrelay.table import Table

if TYPE_CHECKING:
    from splitrelay.data.heterogeneity import Heterogeneity
    from splitrelay.data.images import ImageSet
    from splitrelay.data.partition import Partition


MEASURES = {
    "sizes": "samples per client",
    "classes_per_client": "classes per client",
    "clients_per_class": "clients per class",
    "total_variation": "total variation",
    "earth_movers": "earth mover's (L1)",
}
STATISTICS = ("min", "median", "mean", "max", "sd")


def report(partition: Partition, shape: str) -> None:
    """Print the report. The plot is printed only with the output format "table"."""
    from splitrelay.data.heterogeneity import describe_partition, measure_heterogeneity

    measures = measure_heterogeneity(partition)
    if shape == "table":
        settings = partition.settings
        data = f" of {settings['data']}" if "data" in settings else ""
        seed = f", seed {settings['seed']}" if "seed" in settings else ""
        say(emphasize(f"{partition.title}, {partition.N} samples{data}{seed}") + "\n")
        say(plot_counts(partition.counts.tolist(), partition.classes.tolist(), choose_marks(), get_width()) + "\n")
    emit(_build_table(partition, measures), describe_partition(partition, measures), shape)


def _build_table(partition: Partition, measures: Heterogeneity) -> Table:
    values: dict[str, Any] = asdict(measures)
    rows = [(name, *(values[measure][key] for key in STATISTICS)) for measure, name in MEASURES.items()]
    empty = measures.empty
    listed = ", ".join(map(str, empty[:10])) + (", ..." if len(empty) > 10 else "")
    notes = [
        "Distances are from a client's label law to that of the whole set.",
        f"One-class clients: {measures.one_class_clients} of {partition.M}.",
        f"Empty clients, never drawn for training: {f'{len(empty)} ({listed})' if empty else 'none'}.",
    ]
    return Table(("", *STATISTICS), rows, notes=("", *notes))


def word(name: str, text: str) -> str:
    """Return the text of a key that accepts any name or path."""
    if not text:
        raise InputError(f"{name} is empty", hint=f"Say {name}=NAME.")
    return text


DATA = Key("data", word, "a data set's name, or a path to your own [digits]", many=False)
CLIENTS = Key("M", count, "number of clients [10]", many=False)
SEED = Key("seed", seed, "seed of the draw; the same seed gives the same partition [1]", many=False)
CLASSES = Key("C", count, "classes that a client draws [2]", many=False)
ALPHA = Key("alpha", number, "concentration: smaller is more uneven [10]", many=False)
FORM = Key("form", choice("paper", "balanced"), "paper, or balanced as in the authors' later code [paper]", many=False)
MIN_SIZE = Key("min_size", seed, "samples that every client must have [balanced: 10, else 0]", many=False)
SHARDS = Key("shards", count, "shards that a client gets [2]", many=False)
DEFAULTS: dict[str, Any] = {"M": 10, "C": 2, "alpha": 10.0, "form": "paper", "seed": 1, "shards": 2}

SAVED_KEYS = (Key("data", word, "the data set that was divided [the one named in the file]", many=False),)

PANEL_KEYS = (
    Key("data", word, "a data set's name, or a path to your own [mnist]", many=False),
    CLIENTS,
    Key("C", count, "classes that a client draws, from top to bottom [1,2,5,10]"),
    Key("alpha", number, "concentrations, from left to right [100,10,1]"),
    FORM,
    SEED,
)
PANEL_DEFAULTS: dict[str, list[Any]] = {
    "data": ["mnist"],
    "M": [10],
    "C": [1, 2, 5, 10],
    "alpha": [100.0, 10.0, 1.0],
    "form": ["paper"],
    "seed": [1],
}


def file_option(flag: str, text: str, **more: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return an option whose value is the path of a file."""
    return click.option(flag, type=click.Path(path_type=Path), metavar="FILE", help=text, **more)


figure_option = file_option("--figure", "Also draw a heat map; the name ends in .pdf, .png or .svg.")
bubbles_option = file_option("--bubbles", "Also draw bubbles; the name ends in .pdf, .png or .svg.")
file_argument = click.argument("file", type=click.Path(path_type=Path))


def build_command(kind: str, about: str, keys: tuple[Key, ...], example: str) -> click.Command:
    """Return the command that draws a partition with the scheme `kind`."""

    @click.command(kind, cls=Command, keys=keys, help=about, example=f"splitrelay partition {kind} {example}")
    @settings_argument(keys)
    @file_option("--out", "Save it: .npz, or the authors' JSON as .json or .txt.")
    @figure_option
    @bubbles_option
    @format_option
    def command(
        settings: Sequence[str], out: Path | None, figure: Path | None, bubbles: Path | None, shape: str
    ) -> None:
        from splitrelay.data.partition_schemes import draw_partition, list_settings

        given = {name: values[0] for name, values in parse_settings(settings, keys).items()}
        data = given.pop("data", "digits")
        values = {name: DEFAULTS[name] for name in list_settings(kind) if name in DEFAULTS} | given
        partition = draw_partition(kind, load_training_set(data).y, **values)
        named = replace(partition, settings={"data": data, **partition.settings})
        write_and_report(named, shape, figure, bubbles, out)

    return command


exdir = build_command(
    "exdir",
    "The paper's ExDir(C, alpha). Every client draws C classes, such that every class has a holder. Then every class "
    "is divided among its holders by Dirichlet(alpha).",
    (DATA, CLIENTS, CLASSES, ALPHA, FORM, SEED, MIN_SIZE),
    "data=digits M=10 C=2 alpha=10 form=paper seed=1 --out p.json",
)
iid = build_command("iid", "M random parts of equal size.", (DATA, CLIENTS, SEED), "data=digits M=10 seed=1")
dirichlet = build_command(
    "dirichlet",
    "Every class is divided among all clients by Dirichlet(alpha): ExDir with C = all classes.",
    (DATA, CLIENTS, ALPHA, SEED, MIN_SIZE),
    "data=digits M=10 alpha=0.5 seed=1",
)
pathological = build_command(
    "pathological",
    "C classes a client, and every class in equal shares to its holders: ExDir for alpha to infinity.",
    (DATA, CLIENTS, CLASSES, SEED),
    "data=digits M=10 C=2 seed=1 --out p.npz",
)
shards = build_command(
    "shards",
    "The set is sorted by label and cut into M * shards even pieces. Every client gets random pieces.",
    (DATA, CLIENTS, SHARDS, SEED),
    "data=digits M=10 shards=2 seed=1",
)


@click.command(cls=Command, keys=SAVED_KEYS, example="splitrelay partition show p.json data=digits --figure p.pdf")
@file_argument
@settings_argument(SAVED_KEYS)
@figure_option
@bubbles_option
@format_option
def show(file: Path, settings: Sequence[str], figure: Path | None, bubbles: Path | None, shape: str) -> None:
    """Report on a saved partition. A JSON file contains no labels, so it needs data=NAME."""
    write_and_report(read_partition(file, settings), shape, figure, bubbles)


@click.command(cls=Command, keys=SAVED_KEYS, example="splitrelay partition export p.json data=digits --to clients")
@file_argument
@settings_argument(SAVED_KEYS)
@click.option("--to", type=click.Path(path_type=Path), required=True, metavar="DIR", help="A new or empty folder.")
def export(file: Path, settings: Sequence[str], to: Path) -> None:
    """Write one folder per client (client-0003/data.npz with x and y, and meta.json) for a real deployment."""
    from splitrelay.data.partition_io import export_partition, get_client_labels

    partition = read_partition(file, settings)
    if "data" not in partition.settings:
        raise InputError(f"{file} does not name its data set", hint="Name it: data=NAME.")
    train = load_training_set(partition.settings["data"])
    export_partition(partition.with_labels(train.y), train.x, get_client_labels(train.y, train.classes), to)
    empty = f"; {len(partition.empty)} without samples have none" if partition.empty else ""
    note(f"written: {to}, {len(partition.clients)} clients' folders{empty}")


@click.command(
    cls=Command, keys=PANEL_KEYS, example="splitrelay partition panels data=digits M=10 seed=1 --figure panels.pdf"
)
@settings_argument(PANEL_KEYS)
@file_option("--figure", "The figure: .pdf, .png or .svg.", default="results/partition-panels.pdf", show_default=True)
@format_option
def panels(settings: Sequence[str], figure: Path, shape: str) -> None:
    """Draw the paper's figure of ExDir(C, alpha): twelve partitions over 10 clients with the number of each cell."""
    from splitrelay.data.heterogeneity import describe_partition, measure_heterogeneity
    from splitrelay.data.partition_schemes import exdir as draw_exdir
    from splitrelay.reports import partition_figure
    from splitrelay.reports.style import save_figure

    values = {**PANEL_DEFAULTS, **parse_settings(settings, PANEL_KEYS)}
    labels = load_training_set(values.pop("data")[0]).y
    partitions = {(one["C"], one["alpha"]): draw_exdir(labels, **one) for one in combinations(values)}
    path = save_figure(partition_figure.panels(partitions), figure)
    rows, payloads = [], []
    for (C, alpha), partition in partitions.items():
        measures = measure_heterogeneity(partition)
        means = (measures.classes_per_client.mean, measures.one_class_clients, measures.total_variation.mean)
        rows.append((C, alpha, measures.sizes.sd, *means))
        payloads.append({"C": C, "alpha": alpha, **describe_partition(partition, measures)})
    columns = ("C", "alpha", "sd of sizes", "classes per client", "one-class clients", "total variation")
    emit(Table(columns, rows), payloads, shape)
    note(f"figure: {path}")


def load_training_set(data: str) -> ImageSet:
    """Load the training set of this name. Download it if necessary."""
    from splitrelay.cli.data import ProgressBars
    from splitrelay.data import load
    from splitrelay.data.images import get_images

    with ProgressBars(data) as bars:
        return get_images(load(data, watch=bars.show).train, "this command")


def read_partition(file: Path, settings: Sequence[str]) -> Partition:
    """Read a saved partition. If the settings name the data set, add its labels and its name."""
    from splitrelay.data.partition_io import load_partition

    given = parse_settings(settings, SAVED_KEYS)
    if "data" not in given:
        return load_partition(file)
    data = given["data"][0]
    partition = load_partition(file, load_training_set(data).y)
    return replace(partition, settings={**partition.settings, "data": data})


def write_and_report(
    partition: Partition, shape: str, figure: Path | None, bubbles: Path | None, out: Path | None = None
) -> None:
    """Write the output files, then print the report. With this order a write error is the only output."""
    from splitrelay.cli.partition.commands import report

    lines = []
    if out is not None:
        from splitrelay.data.partition_io import save_partition

        lines.append(f"written: {save_partition(partition, out)}")
    if figure is not None or bubbles is not None:
        from splitrelay.reports import partition_figure
        from splitrelay.reports.style import save_figure

        plots = ((figure, partition_figure.heat_map), (bubbles, partition_figure.bubbles))
        lines += [f"figure: {save_figure(draw(partition), path)}" for path, draw in plots if path is not None]
    report(partition, shape)
    for line in lines:
        note(line)
