"""`splitrelay theory check`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from splitrelay.cli.click_extensions import Command
from splitrelay.cli.console import emit, format_option, is_progress_hidden
from splitrelay.cli.key_values import Key, count, parse_settings, seed, settings_argument
from splitrelay.errors import WorkError
from splitrelay.table import Table

if TYPE_CHECKING:
    from splitrelay.paper.theory_check import Row
    from splitrelay.paper.theory_check.exact_runs import Ratios

KEYS = (
    Key("instances", count, "number of random problems (default 200, one to two minutes)", many=False),
    Key("seed", seed, "seed of the random problems (default 1)", many=False),
)


@click.command(cls=Command, keys=KEYS, example="splitrelay theory check instances=5 seed=1")
@settings_argument(KEYS)
@format_option
def check(settings: tuple[str, ...], shape: str) -> None:
    """Check the bounds against exact expectations.

    On random noisy quadratics the second moments are known exactly, over all orders or samples of clients and over the
    noise. On piecewise quadratic, logistic and softmax problems the command enumerates all orders, samples and noises
    of a few rounds. On the hard instance it checks a lower bound. The table shows for every statement how often it was
    checked, how often it failed, and the smallest and the median ratio bound/actual. The formula of E7 is also checked
    as printed, and must fail.
    """
    from splitrelay.paper.theory_check import run_checks, summarize

    given = {name: values[0] for name, values in parse_settings(settings, KEYS).items()}
    instances = given.get("instances", 200)
    seed_value = given.get("seed", 1)
    rows = summarize(_show_progress(run_checks(instances, seed_value), instances))
    records = [asdict(row) | {"known_false": row.is_known_false, "as_expected": row.is_as_expected} for row in rows]
    emit(
        _build_table(rows, instances, seed_value),
        {"instances": instances, "seed": seed_value, "statements": records},
        shape,
    )
    check_expectations(rows)


def check_expectations(rows: Sequence[Row]) -> None:
    """Raise WorkError if a true statement failed or the false one did not fail."""
    wrong = [row.statement for row in rows if not row.is_as_expected]
    if wrong:
        raise WorkError(f"{len(wrong)} of {len(rows)} statements did not behave as expected: {'; '.join(wrong)}")


def _show_progress(parts: Iterable[Ratios], instances: int) -> Iterator[Ratios]:
    """Show a progress bar on a terminal."""
    if is_progress_hidden():
        yield from parts
        return
    with click.progressbar(parts, length=instances, label="instances", file=sys.stderr) as bar:
        yield from bar


def _build_table(rows: Sequence[Row], instances: int, seed_value: int) -> Table:
    lines = [(_shorten(row.statement), row.checks, row.violations, row.smallest, row.median) for row in rows]
    title = f"bound/actual on {instances} random problems, seed {seed_value}"
    notes = [f"{_shorten(row.statement)}: false as printed, fails as expected." for row in rows if row.is_known_false]
    return Table(("statement", "checks", "violated", "smallest", "median"), lines, title, notes)


def _shorten(statement: str) -> str:
    """Shorten a statement so that a line fits into 80 columns."""
    return statement.replace(", S without replacement", " SWOR").replace(", S with replacement", " SWR")
