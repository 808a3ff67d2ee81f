"""The adapter between the calculator and the command line: a function of a grid becomes a table, JSON or a figure.

A command describes its result with a `Calculation`. `show` reads the key=value settings, computes the result, draws
the figure if one is requested, and prints the result in the requested format.

The settings of a command: the fixed keys, the varying keys, and every combination of them.
"""

from __future__ import annotations

import textwrap
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, product
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import click
from click.core import ParameterSource

from splitrelay.cli.console import emit, format_tick, note, say
from splitrelay.cli.key_values import POINTS, Key, parse_settings
from splitrelay.errors import InputError
from splitrelay.table import Table, format_cell

if TYPE_CHECKING:
    from splitrelay.reports.theory_figures import FigureLabels
    from splitrelay.theory import Bound, Condition, Problem, Rate


FIGURE_POINTS = 241  # points of a range in a figure; a table has POINTS
MAX_PANELS = 9  # of a figure
CHOICES = ("constants", "horizon")  # keys whose values are names
OTHERS = ("eta", "eta_tilde", "eps", "r2", "DF", "G2", "E", "E_mean")  # numbers that do not belong to a Problem


@dataclass(frozen=True)
class Grid:
    """The values of every given key. A key with one value is fixed, a key with more values varies."""

    values: Mapping[str, Sequence[Any]]

    @property
    def size(self) -> int:
        """The number of settings."""
        return prod(len(values) for values in self.values.values())

    @property
    def is_single(self) -> bool:
        """Whether there is only one setting."""
        return self.size == 1

    @property
    def varying(self) -> tuple[str, ...]:
        """The keys with more than one value."""
        return tuple(name for name, values in self.values.items() if len(values) > 1)

    @property
    def fixed(self) -> dict[str, Any]:
        """The keys with one value."""
        return {name: values[0] for name, values in self.values.items() if len(values) == 1}

    @property
    def settings(self) -> list[dict[str, Any]]:
        """Every setting as a dict of all keys. The last key changes fastest."""
        return [dict(zip(self.values, row, strict=True)) for row in product(*self.values.values())]

    @property
    def columns(self) -> dict[str, list[Any]]:
        """One column for each varying key, in the order of `settings`."""
        columns = zip(*product(*(self.values[name] for name in self.varying)), strict=True)
        return {name: list(column) for name, column in zip(self.varying, columns, strict=True)}

    @property
    def choices(self) -> dict[str, Any]:
        """The values of constants= and horizon=, if given."""
        return {name: value for name, value in self.fixed.items() if name in CHOICES}

    @property
    def others(self) -> dict[str, Any]:
        """The steps and further numbers that do not belong to the problem."""
        return {name: value for name, value in (self.fixed | self.columns).items() if name in OTHERS}

    @property
    def problem(self) -> Problem:
        """The checked problem: a number for a fixed key and a column for a varying key."""
        from splitrelay.theory import Problem

        numbers = self.fixed | self.columns
        return Problem(**{name: value for name, value in numbers.items() if name not in (*OTHERS, *CHOICES)})

    @property
    def caption(self) -> str:
        """The fixed quantities on one line."""
        return ", ".join(f"{name}={format_cell(value)}" for name, value in self.fixed.items() if name not in CHOICES)

    @property
    def longest(self) -> str:
        """The key with the most values, which is on the x axis of a figure."""
        return max(self.varying, key=lambda name: len(self.values[name]))

    @property
    def abscissa(self) -> Sequence[Any]:
        """The values on the x axis. A single setting has one value without a meaning."""
        return [1.0] if self.is_single else self.values[self.longest]

    def split_panels(self, limit: int = MAX_PANELS) -> list[Grid]:
        """Return one grid for every combination of the varying keys other than the longest one."""
        rest = [name for name in self.varying if name != self.longest] if not self.is_single else []
        count = prod(len(self.values[name]) for name in rest)
        if count > limit:
            raise InputError(
                f"a figure shows at most {limit} panels", value=count, hint=f"Vary fewer of: {', '.join(rest)}."
            )
        return [
            Grid({**self.values, **{name: [value] for name, value in zip(rest, row, strict=True)}})
            for row in product(*(self.values[name] for name in rest))
        ]


def read_grid(
    settings: Sequence[str], keys: Iterable[Key], points: int = POINTS, other_keys: Mapping[str, str] | None = None
) -> Grid:
    """Read the key=value settings of a command.

    Args:
        points: the number of points of a range that does not state it.
        other_keys: keys that belong to related commands, with a hint for each.
    """
    for name, hint in (other_keys or {}).items():
        if any(setting.startswith(f"{name}=") for setting in settings):
            raise InputError(f"this command does not take {name}", hint=hint)
    return Grid(parse_settings(settings, keys, points))


Result = TypeVar("Result")
NAMES = {
    "ssl": "SSL",
    "ssl-swor": "SSL with S of M clients",
    "fedavg": "FedAvg",
    "fedavg-swor": "FedAvg with S of M clients",
    "fedavg-swr": "FedAvg with S clients, drawn with replacement",
    "minibatch-sgd": "minibatch SGD",
}
LAST_ITERATE = "E||x^R - x*||^2"  # the measure of the bound on the last iterate


class Calculation(ABC, Generic[Result]):
    """One command of the calculator: how to compute its result and how to present it."""

    keys: Sequence[Key]
    other_keys: ClassVar[Mapping[str, str]] = {}  # keys that only related commands have, with a hint for each
    figure_kind = "bound on"

    @abstractmethod
    def compute(self, grid: Grid) -> Result:
        """Compute the result. A bound outside its range is an error for one setting and NaN for many settings."""

    @abstractmethod
    def format_title(self, result: Result) -> str:
        """Return the title of the output and of the figure."""

    @abstractmethod
    def build_records(self, result: Result, size: int) -> list[dict[str, Any]]:
        """Return the records for JSON, one for each setting (and each rate), without the settings."""

    @abstractmethod
    def print_one(self, result: Result, record: Mapping[str, Any], grid: Grid, shape: str) -> None:
        """Print the only record as text or Markdown. The title is already printed."""

    @abstractmethod
    def build_columns(self, result: Result, grid: Grid, is_csv: bool) -> dict[str, list[Any]]:
        """Build the columns of the table of many settings, without those of the varying keys."""

    @abstractmethod
    def get_notes(self, result: Result, grid: Grid) -> tuple[str, Sequence[str]]:
        """Return a last line for the title of the table, or an empty string, and the notes below the table."""

    @abstractmethod
    def get_panels(self, result: Result) -> Mapping[str, Bound | Rate]:
        """Return one bound or rate for each panel of a figure, by its label."""

    def count_panels(self, grid: Grid) -> int:
        """Return the number of panels that one combination of settings needs."""
        return 1

    def build_table(self, result: Result, grid: Grid, is_csv: bool) -> Table:
        """Build the table of many records. CSV keeps columns without values, because programs expect them."""
        subtitle, notes = self.get_notes(result, grid)
        title = "\n".join(filter(None, [wrap(self.format_title(result)), wrap(grid.caption), subtitle]))
        columns = grid.columns | self.build_columns(result, grid, is_csv)
        return build_column_table(columns, title, notes, len(grid.varying), is_csv)

    def draw(self, grid: Grid, path: Path) -> None:
        """Write the figure: stacks of terms over the key with the most values."""
        from splitrelay.reports.theory_figures import build_bound_panel, build_rate_panel, save_stacks
        from splitrelay.theory import Bound

        results = [(part, self.compute(part)) for part in grid.split_panels(MAX_PANELS // self.count_panels(grid))]
        first = next(iter(self.get_panels(results[0][1]).values()))
        labels = build_labels(grid, self.format_title(results[0][1]), first.measure, first.case, self.figure_kind)
        panels = []
        for part, result in results:
            for name, series in self.get_panels(result).items():
                label = format_panel_label(grid, part, labels, name)
                if isinstance(series, Bound):
                    start = get_start_levels(series, part)
                    panels.append(build_bound_panel(label, part.abscissa, series, start))
                else:
                    panels.append(build_rate_panel(label, part.abscissa, series))
        save_stacks(panels, labels, path)


def show(calculation: Calculation[Any], settings: Sequence[str], shape: str, figure: Path | None) -> None:
    """Compute and print a calculation, and draw its figure first, so that a write error is the only output."""
    grid = read_grid(settings, calculation.keys, other_keys=calculation.other_keys)
    result = calculation.compute(grid)
    if figure is not None:
        calculation.draw(read_grid(settings, calculation.keys, FIGURE_POINTS), figure)
        source = click.get_current_context().get_parameter_source("shape")
        is_only_output = source is ParameterSource.DEFAULT
        (say if is_only_output else note)(f"figure: {figure}")
        if is_only_output:
            return
    records = []
    if shape == "json" or grid.is_single:
        records = calculation.build_records(result, grid.size)
        for record, values in zip(records, cycle(grid.settings), strict=False):
            record["settings"] = values
    if shape == "json":
        emit(Table((), ()), records[0] if len(records) == 1 else records, shape)
    elif len(records) == 1 and shape != "csv":
        say(f"{wrap(calculation.format_title(result))}\n{wrap(grid.caption)}\n")
        calculation.print_one(result, records[0], grid, shape)
    else:
        emit(calculation.build_table(result, grid, shape == "csv"), None, shape)


def get_column(value: Any, size: int) -> list[Any]:
    """Return a result as a list with one value per setting."""
    plain = value.tolist() if hasattr(value, "tolist") else value
    return plain if isinstance(plain, list) else [plain] * size


def split_settings(tree: Any, size: int) -> list[Any]:
    """Split nested dicts and lists of results into one nested structure per setting."""
    if isinstance(tree, Mapping):
        columns = [split_settings(value, size) for value in tree.values()]
        return [dict(zip(tree, (column[j] for column in columns), strict=True)) for j in range(size)]
    if isinstance(tree, list | tuple):
        columns = [split_settings(value, size) for value in tree]
        return [[column[j] for column in columns] for j in range(size)]
    return get_column(tree, size)


def build_bound_records(bound: Bound, size: int) -> list[dict[str, Any]]:
    """Return one record per setting with the terms, the step and every condition with its two sides."""
    names = ("algorithm", "case", "constants", "statement", "measure", "formulas")
    tree: dict[str, Any] = {"total": bound.total, "terms": bound.terms, "eta": bound.eta, "eta_tilde": bound.eta_tilde}
    tree |= {"conditions": get_condition_fields(bound.conditions), "vacuous": bound.vacuous}
    tree |= {"applicable": bound.applicable, "why_not": None} | {name: getattr(bound, name) for name in names}
    records: list[dict[str, Any]] = split_settings(tree, size)
    for record, reason in zip(records, list_reasons(bound.conditions, bound.applicable, size), strict=True):
        record["vacuous"] = record["vacuous"] if record["applicable"] else None
        record["why_not"] = reason
    return records


def get_condition_fields(conditions: Sequence[Condition]) -> list[dict[str, Any]]:
    """Return the fields of conditions as they stand in JSON."""
    return [{name: getattr(c, name) for name in ("name", "left", "relation", "right", "holds")} for c in conditions]


def list_reasons(conditions: Sequence[Condition], applicable: Any, size: int) -> list[str | None]:
    """Return the first condition that fails for each setting, or None where the statement applies."""
    reasons: list[str | None] = [
        None if applies else "the bound leaves the range of double precision"
        for applies in get_column(applicable, size)
    ]
    for c in reversed(conditions):
        left, right = get_column(c.left, size), get_column(c.right, size)
        for j, holds in enumerate(get_column(c.holds, size)):
            if not holds:
                reasons[j] = f"needs {c.name} = {format_cell(float(right[j]))}; got {format_cell(float(left[j]))}"
    return reasons


def build_column_table(
    columns: Mapping[str, Sequence[Any]],
    title: str = "",
    notes: Sequence[str] = (),
    lead: int = 1,
    keep_empty: bool = False,
) -> Table:
    """Build a table from columns. Columns without any value are left out unless `keep_empty` is set."""
    shown = {
        name: values for name, values in columns.items() if keep_empty or any(value is not None for value in values)
    }
    return Table(list(shown), list(zip(*shown.values(), strict=True)), title, notes, lead)


def build_condition_table(conditions: Sequence[Mapping[str, Any]]) -> Table:
    """Build a table of conditions with both sides and a tick."""
    rows = [(format_tick(c["holds"]), c["name"], c["left"], c["relation"], c["right"]) for c in conditions]
    return Table(("", "condition", "left", "", "right"), rows)


def build_term_rows(record: Mapping[str, Any]) -> list[tuple[str, float, str]]:
    """Return the name, the value and the share of each term."""
    total = record["total"]
    return [(name, value, f"{value / total:6.1%}" if total else "-") for name, value in record["terms"].items()]


def get_start_level(bound: Bound, settings: Mapping[str, Any]) -> tuple[str, float]:
    """Return the formula and the value that is known at x0. A bound that is not below it is vacuous."""
    if bound.measure == LAST_ITERATE:
        return "D2", settings["D2"]
    if bound.case == "non-convex":
        return "2 L A", 2 * settings["L"] * settings["A"]
    if "A" in settings:
        return "A", settings["A"]
    return "L D2 / 2", settings["L"] * settings["D2"] / 2


def get_start_levels(bound: Bound, grid: Grid) -> list[float]:
    """Return the value that is known at x0 for each setting."""
    return [get_start_level(bound, settings)[1] for settings in grid.settings]


def wrap(text: str) -> str:
    """Wrap text to 80 columns."""
    return textwrap.fill(text, 80)


def build_labels(grid: Grid, headline: str, measure: str, case: str, kind: str = "bound on") -> FigureLabels:
    """Build the labels of a figure of this grid."""
    from splitrelay.reports.theory_figures import FigureLabels

    fixed = {name: value for name, value in grid.fixed.items() if name not in CHOICES}
    return FigureLabels(headline, fixed, "" if grid.is_single else grid.longest, measure, case, kind)


def format_panel_label(grid: Grid, part: Grid, labels: FigureLabels, name: str = "") -> str:
    """Return what distinguishes a panel from the others: the algorithm, if it varies, and its own settings."""
    own = [labels.format_setting(key, part.fixed[key]) for key in grid.varying if key in part.fixed]
    return ", ".join(filter(None, [NAMES.get(name, name), *own]))
