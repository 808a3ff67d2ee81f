"""`splitrelay theory check`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from splitrelay.cli.click_extensions import Command
from splitrelay.cli.console import progress_hidden
from splitrelay.cli.key_values import Key, count, parsed, seed, settings_argument
from splitrelay.cli.table_output import Table, emit, format_option
from splitrelay.errors import WorkError

if TYPE_CHECKING:
    from splitrelay.paper.theory_check import Row
    from splitrelay.paper.theory_check.exact_runs import Evidence

KEYS = (
    Key("instances", count, "random problems to try (default 200, under a minute)", many=False),
    Key("seed", seed, "which ones (default 1)", many=False),
)


@click.command(cls=Command, keys=KEYS, example="splitrelay theory check instances=5 seed=1")
@settings_argument(KEYS)
@format_option
def check(settings: tuple[str, ...], shape: str) -> None:
    """The bounds against exact expectations.

    On random noisy quadratics the second moments are known exactly, over all orders or samples of clients and over the
    noise. Every statement is held against them: how often it was checked, how often it failed, and bound/actual at its
    smallest and in the median. The display of E7 is checked as printed too, and is to fail.
    """
    from splitrelay.paper.theory_check import check, table

    given = {name: values[0] for name, values in parsed(settings, KEYS).items()}
    instances = given.get("instances", 200)
    chosen = given.get("seed", 1)
    rows = table(_watched(check(instances, chosen), instances))
    records = [asdict(row) | {"known_false": row.known_false, "as_expected": row.as_expected} for row in rows]
    emit(_table(rows, instances, chosen), {"instances": instances, "seed": chosen, "statements": records}, shape)
    refuse_surprises(rows)


def refuse_surprises(rows: Sequence[Row]) -> None:
    """A true statement that fails, or the false one that does not, is failed work."""
    wrong = [row.statement for row in rows if not row.as_expected]
    if wrong:
        raise WorkError(f"{len(wrong)} of {len(rows)} statements did not do as expected: {'; '.join(wrong)}")


def _watched(evidence: Iterable[Evidence], instances: int) -> Iterator[Evidence]:
    """With a bar for people at a terminal."""
    if progress_hidden():
        yield from evidence
        return
    with click.progressbar(evidence, length=instances, label="instances", file=sys.stderr) as bar:
        yield from bar


def _table(rows: Sequence[Row], instances: int, chosen: int) -> Table:
    lines = [(_short(row.statement), row.checks, row.violations, row.smallest, row.median) for row in rows]
    title = f"bound/actual on {instances} random noisy quadratics, seed {chosen}"
    notes = [f"{_short(row.statement)}: false as printed, shown failing." for row in rows if row.known_false]
    return Table(("statement", "checks", "violated", "smallest", "median"), lines, title, notes)


def _short(statement: str) -> str:
    """So that a line fits into 80 columns."""
    return statement.replace(", S without replacement", " SWOR").replace(", S with replacement", " SWR")
