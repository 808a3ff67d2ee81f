"""`splitrelay partition panels`: the paper's figure of ExDir, C down and alpha across."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from splitrelay.cli.click_extensions import Command
from splitrelay.cli.console import note
from splitrelay.cli.key_values import Key, combinations, count, number, parsed, settings_argument
from splitrelay.cli.partition.options import CLIENTS, DATA, FORM, SEED, file_option, training_set
from splitrelay.cli.table_output import Table, emit, format_option

if TYPE_CHECKING:
    from splitrelay.data.partition import Partition

KEYS = (
    Key("data", DATA.read, "a data set's name, or a path to your own [mnist]", many=False),
    CLIENTS,
    Key("C", count, "classes that a client draws, from top to bottom [1,2,5,10]"),
    Key("alpha", number, "concentrations, from left to right [100,10,1]"),
    FORM,
    SEED,
)
DEFAULTS: dict[str, list[Any]] = {
    "data": ["mnist"],
    "M": [10],
    "C": [1, 2, 5, 10],
    "alpha": [100.0, 10.0, 1.0],
    "form": ["paper"],
    "seed": [1],
}
COLUMNS = ("C", "alpha", "sd of sizes", "classes per client", "one-class clients", "total variation")


@click.command(
    cls=Command, keys=KEYS, example="splitrelay partition panels data=digits M=10 seed=1 --figure panels.pdf"
)
@settings_argument(KEYS)
@file_option("--figure", "The figure: .pdf, .png or .svg.", default="results/partition-panels.pdf", show_default=True)
@format_option
def panels(settings: Sequence[str], figure: Path, shape: str) -> None:
    """The paper's picture of ExDir(C, alpha): twelve partitions over 10 clients, every count in its cell, one scale."""
    from splitrelay.reports import partition_figure
    from splitrelay.reports.style import save

    drawn = _drawn({**DEFAULTS, **parsed(settings, KEYS)})
    saved = save(partition_figure.panels(drawn), figure)
    emit(_table(drawn), [_payload(C, alpha, found) for (C, alpha), found in drawn.items()], shape)
    note(f"figure: {saved}")


def _drawn(values: dict[str, list[Any]]) -> dict[tuple[int, float], Partition]:
    from splitrelay.data.exdir import exdir

    labels = training_set(values.pop("data")[0]).y
    return {(one["C"], one["alpha"]): exdir(labels, **one) for one in combinations(values)}


def _table(drawn: Mapping[tuple[int, float], Partition]) -> Table:
    from splitrelay.data.heterogeneity import heterogeneity

    rows = []
    for (C, alpha), found in drawn.items():
        told = heterogeneity(found)
        means = (told.classes_per_client.mean, told.one_class_clients, told.total_variation.mean)
        rows.append((C, alpha, told.sizes.sd, *means))
    return Table(COLUMNS, rows)


def _payload(C: int, alpha: float, found: Partition) -> dict[str, Any]:
    from splitrelay.cli.partition.report import payload
    from splitrelay.data.heterogeneity import heterogeneity

    return {"C": C, "alpha": alpha, **payload(found, heterogeneity(found))}
