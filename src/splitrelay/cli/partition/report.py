"""What `splitrelay partition` prints: the picture, the table of measures, and who is alone or empty."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from splitrelay.cli.console import emphasised, say
from splitrelay.cli.partition.terminal_plot import ink, picture, width
from splitrelay.cli.table_output import Table, emit

if TYPE_CHECKING:
    from splitrelay.data.heterogeneity import Heterogeneity
    from splitrelay.data.partition import Partition

MEASURES = {
    "sizes": "samples per client",
    "classes_per_client": "classes per client",
    "clients_per_class": "clients per class",
    "total_variation": "total variation",
    "earth_movers": "earth mover's (L1)",
}
FIVE = ("min", "median", "mean", "max", "sd")


def report(partition: Partition, shape: str) -> None:
    """The picture above the table for people, the bare table or everything for programs."""
    from splitrelay.data.heterogeneity import heterogeneity

    measured = heterogeneity(partition)
    if shape == "table":
        say(emphasised(caption(partition)) + "\n")
        say(picture(partition.counts.tolist(), partition.classes.tolist(), ink(), width()) + "\n")
    emit(_table(partition, measured), payload(partition, measured), shape)


def caption(partition: Partition) -> str:
    """The law, the set and the seed in one line."""
    settings = partition.settings
    data = f" of {settings['data']}" if "data" in settings else ""
    seed = f", seed {settings['seed']}" if "seed" in settings else ""
    return f"{partition.title}, {partition.N} samples{data}{seed}"


def payload(partition: Partition, measured: Heterogeneity) -> dict[str, Any]:
    """All of it, for programs."""
    return {
        "kind": partition.kind,
        "settings": dict(partition.settings),
        "M": partition.M,
        "N": partition.N,
        "classes": partition.classes,
        "measures": asdict(measured),
        "counts": partition.counts,
    }


def _table(partition: Partition, measured: Heterogeneity) -> Table:
    values: Mapping[str, Any] = asdict(measured)
    rows = [(name, *(values[measure][five] for five in FIVE)) for measure, name in MEASURES.items()]
    return Table(("", *FIVE), rows, notes=("", *_notes(partition, measured)))


def _notes(partition: Partition, measured: Heterogeneity) -> list[str]:
    empty = measured.empty
    listed = ", ".join(map(str, empty[:10])) + (", ..." if len(empty) > 10 else "")
    return [
        "Distances are from a client's label law to that of the whole set.",
        f"One-class clients: {measured.one_class_clients} of {partition.M}.",
        f"Empty clients, never drawn for training: {f'{len(empty)} ({listed})' if empty else 'none'}.",
    ]
