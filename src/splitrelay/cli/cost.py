"""`splitrelay cost`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from splitrelay.cli.click_extensions import Command
from splitrelay.cli.console import emit, format_option
from splitrelay.cli.key_values import settings_argument
from splitrelay.cli.spec_arguments import list_spec_keys, load_spec_arguments
from splitrelay.table import Table

COLUMNS = ("algorithm", "placement", "layers", "after", "parameters", "visits", "kB up", "kB down", "messages", "MFLOP")
SEEN = ("socket kB up", "socket kB down", "all messages", "ms computing", "ms waiting", "MB memory")


@click.command(
    cls=Command, keys=list_spec_keys, example="splitrelay cost data=digits model=lenet-small K=5 --algorithm all"
)
@settings_argument(list_spec_keys, metavar="[SPEC] [KEY=VALUE]...")
@click.option("--algorithm", "algorithms", multiple=True, metavar="NAME",
              help="Also of this algorithm; all: of every one. Repeatable.")  # fmt: skip
@click.option("--measured", type=click.Path(path_type=Path), metavar="RUN",
              help="Beside it what a deployed run measured: its directory.")  # fmt: skip
@format_option
def cost(settings: Sequence[str], algorithms: tuple[str, ...], measured: Path | None, shape: str) -> None:
    """What a client pays for one visit: bytes, messages and FLOPs for every cut, and for the whole model.

    Bytes are those that a run records, headers and labels included; FLOPs are the client's, forward and backward, a
    multiply-add counting two. Means over the clients of the spec's partition. What a deployed run measured is all that
    its sockets carried: TLS, heartbeats and repetitions too.
    """
    from splitrelay.deploy.visit_cost import compare_costs, format_measured, format_rows
    from splitrelay.runs.registry import ALGORITHMS, algorithm

    given = [str(measured / "spec.toml")] if measured and not settings else settings
    spec = load_spec_arguments("cost", given)
    names = (spec.algorithm, *(ALGORITHMS if "all" in algorithms else algorithms)) if algorithms else ()
    for name in names or (spec.algorithm,):
        algorithm(name)  # an unknown one has no price
    rows = compare_costs(spec, names, measured)
    title = f"{spec.model.name} on {spec.data.name}: one visit, K={spec.mean_K:g}"
    notes = ("* as in the spec", "A round is `visits` of them for each of its S clients.")
    cells = list(format_rows(rows))
    if measured is not None:
        cells = [(*one, *format_measured(row.measured)) for one, row in zip(cells, rows, strict=True)]
    columns = COLUMNS if measured is None else COLUMNS + SEEN
    emit(Table(columns, cells, title, notes), [asdict(row) for row in rows], shape)
