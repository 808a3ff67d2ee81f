"""The report of `splitrelay partition`: a plot, a table of measures, and the clients with one class or none."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from splitrelay.cli.console import emphasised, say
from splitrelay.cli.partition.terminal_plot import choose_marks, get_width, plot_counts
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
STATISTICS = ("min", "median", "mean", "max", "sd")


def report(partition: Partition, shape: str) -> None:
    """Print the report. The plot is printed only with the output format "table"."""
    from splitrelay.data.heterogeneity import measure_heterogeneity

    measures = measure_heterogeneity(partition)
    if shape == "table":
        settings = partition.settings
        data = f" of {settings['data']}" if "data" in settings else ""
        seed = f", seed {settings['seed']}" if "seed" in settings else ""
        say(emphasised(f"{partition.title}, {partition.N} samples{data}{seed}") + "\n")
        say(plot_counts(partition.counts.tolist(), partition.classes.tolist(), choose_marks(), get_width()) + "\n")
    emit(_build_table(partition, measures), build_payload(partition, measures), shape)


def build_payload(partition: Partition, measures: Heterogeneity) -> dict[str, Any]:
    """Return the whole report as JSON data."""
    return {
        "kind": partition.kind,
        "settings": dict(partition.settings),
        "M": partition.M,
        "N": partition.N,
        "classes": partition.classes,
        "measures": asdict(measures),
        "counts": partition.counts,
    }


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
