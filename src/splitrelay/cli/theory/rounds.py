"""`splitrelay theory rounds`: the rounds that reach an accuracy, and the accuracy that rounds reach."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from splitrelay.cli.click_extensions import Command
from splitrelay.cli.console import emit, format_option, say
from splitrelay.cli.key_values import Key, number, settings_argument
from splitrelay.cli.theory import adapter, options
from splitrelay.cli.theory.adapter import Grid, read_grid
from splitrelay.errors import InputError

if TYPE_CHECKING:
    from splitrelay.theory import StepSize

EPS = Key("eps", number, "the accuracy to reach, in the measure of the bound (instead of R)")
KEYS = (*options.QUANTITIES, options.ZETA2_STAR, EPS, options.CONSTANTS_KEY, options.HORIZON_KEY)


@click.command(
    cls=Command,
    keys=KEYS,
    example="splitrelay theory rounds ssl strongly-convex L=2 mu=1 sigma2=1 zeta2=4 M=10 K=5 D2=1 eps=0.01",
)
@options.algorithm_argument
@options.case_argument
@settings_argument(KEYS)
@format_option
def rounds(alg: str, case: str, settings: tuple[str, ...], shape: str) -> None:
    """Compute the number of rounds to reach an accuracy eps, or the accuracy that R rounds reach.

    Give eps or R. The step is the one that minimizes the bound for this number of rounds. ALG and CASE are those of
    'theory bound'.
    """
    grid = read_grid(settings, KEYS)
    if ("eps" in grid.values) == ("R" in grid.values):
        raise InputError("rounds needs one of eps and R", hint="eps=... finds R, R=... finds eps.")
    numbers, step = _compute(alg, case, grid)
    title = f"{adapter.NAMES[alg]}: rounds for {step.bound.statement}, {step.bound.constants} constants"
    found = {"eps": step.bound.total, "R": numbers, "eta_tilde": step.eta_tilde, "eta": step.eta}
    columns = {name: adapter.get_column(values, grid.size) for name, values in found.items()}
    if "eps" in grid.values:
        columns = {"R": columns.pop("R"), "bound": columns.pop("eps"), **columns}
    else:
        del columns["R"]
    fixed = "\n".join(filter(None, [adapter.wrap(title), adapter.wrap(grid.caption)]))
    if shape == "json":
        records = adapter.split_settings({name: found[name] for name in found}, grid.size)
        for record, values in zip(records, grid.settings, strict=True):
            record |= {"settings": values, "measure": step.bound.measure, "statement": step.bound.statement}
        emit(adapter.build_column_table({}), records[0] if len(records) == 1 else records, shape)
    elif grid.is_single and shape == "table":
        one = {name: values[0] for name, values in columns.items()}
        say(fixed + "\n")
        _print_one(one, step, grid)
    else:
        emit(adapter.build_column_table(grid.columns | columns, fixed, (), len(grid.varying)), None, shape)


def _compute(alg: Any, case: Any, grid: Grid) -> tuple[Any, StepSize]:
    """Return the numbers of rounds and the steps."""
    from splitrelay.theory import rounds, stepsize

    if "R" in grid.values:
        problem, outside = grid.problem, "refuse" if grid.is_single else "mask"
        return problem.R, stepsize(alg, case, problem, **grid.choices, outside=outside)  # type: ignore[arg-type]
    found = rounds(alg, case, grid.problem, **grid.others, **grid.choices)
    return found.R, found.step


def _print_one(one: dict[str, Any], step: StepSize, grid: Grid) -> None:
    from splitrelay.table import format_cell

    at = f"eta_tilde = {format_cell(one['eta_tilde'])} (eta = {format_cell(one['eta'])})"
    if "eps" in grid.values:
        say(f"{one['R']:.0f} rounds: {step.bound.measure} <= {format_cell(one['bound'])} at {at}.")
    else:
        say(f"eps = {format_cell(one['eps'])}: {step.bound.measure} <= eps at {at}.")
    if step.bound.vacuous:
        say("Vacuous: the bound is not below the value that is known at x0.")
