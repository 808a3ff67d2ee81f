"""Results in Python: one run (`Run`), or all runs of a folder (`find_runs`), as data frames and figures."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from splitrelay.data.optional_imports import import_optional
from splitrelay.errors import UnknownName
from splitrelay.runs import records
from splitrelay.runs.spec import KEYS, Spec
from splitrelay.user_functions import get_short_name

if TYPE_CHECKING:
    import pandas
    import torch
    from matplotlib.axes import Axes
    from torch import nn

SHOWN = 5  # rows of a run in a notebook
FRACTIONS = ("accuracy", "auroc", "auprc", "f1", "r2")  # values that are shown with four digits


@dataclass(frozen=True, eq=False)
class Run:
    """One run: its spec, one row per evaluation, and the trained model.

    `sr.fit` returns it. It shows its last rows in a notebook.

    Attributes:
        spec: The settings.
        rows: One mapping per evaluation; the first is the model before the first round.
        x: The trained weights as one flat vector.
        path: The run directory, or None if the run has none.
    """

    spec: Spec
    rows: Sequence[Mapping[str, Any]]
    x: torch.Tensor = field(repr=False)
    path: Path | None = None
    _module: nn.Module | None = field(default=None, repr=False)

    @property
    def model(self) -> nn.Module:
        """The module with its trained weights, in evaluation mode."""
        assert self._module is not None
        return self._module

    @property
    def metrics(self) -> dict[str, float]:
        """The test loss, the accuracy and all metrics of the last evaluation."""
        return {
            name.removeprefix("test_"): value
            for name, value in self.rows[-1].items()
            if name.startswith("test_") and isinstance(value, float) and value == value
        }

    def frame(self) -> pandas.DataFrame:
        """Return a data frame with one row per evaluation. It needs pandas."""
        return make_frame(self.rows)

    def plot(self, metric: str | None = None, ax: Axes | None = None) -> Axes:
        """Draw the learning curve.

        Args:
            metric: A column of `frame()`, such as "test_loss", or the name of a metric. The default is the first
                metric that was asked for, else the accuracy, else the loss.
            ax: The axes to draw into; a new figure if None.

        Returns:
            The axes.
        """
        column = self._find_column(metric)
        ax = ax or _make_axes()
        points = [(row["round"], row[column]) for row in self.rows if row.get(column) is not None]
        ax.plot(*zip(*points, strict=True), label=self._describe())
        ax.set_xlabel("round")
        ax.set_ylabel(column.replace("_", " "))
        ax.grid(alpha=0.3)
        ax.legend()
        return ax

    def _describe(self) -> str:
        """Return the algorithm and its rate, which the spec does not know if the algorithm is an object."""
        name, algorithm = get_short_name(self.spec.algorithm), self.spec.algorithm
        return name if name != algorithm else f"{algorithm}, eta = {self.spec.optimiser.eta:g}"

    def _find_column(self, metric: str | None) -> str:
        columns = [name for name, value in self.rows[-1].items() if isinstance(value, float)]
        if metric is None:
            known = [name for name in columns if self.rows[-1][name] == self.rows[-1][name]]
            extra = [name for name in known if name.startswith("test_") and name not in ("test_loss", "test_accuracy")]
            return next(name for name in (*extra, "test_accuracy", "test_loss") if name in known)
        for name in (metric, f"test_{metric}"):
            if name in columns:
                return name
        raise UnknownName("column of the run", metric, columns)

    def __repr__(self) -> str:
        metrics = ", ".join(f"{name} {_format(name, value)}" for name, value in self.metrics.items())
        where = "" if self.path is None else f", in {self.path}"
        return f"<Run {get_short_name(self.spec.algorithm)}, {self.rows[-1]['round']} rounds: {metrics}{where}>"

    def _repr_html_(self) -> str:
        return f"<p>{html.escape(repr(self)[1:-1])}</p>{_format_html(self.rows[-SHOWN:])}"


@dataclass(frozen=True, eq=False)
class RunCollection:
    """All runs of a folder."""

    folder: Path
    found: Sequence[records.Run]

    def frame(self) -> pandas.DataFrame:
        """Return a data frame with one row per evaluation of every run. It needs pandas.

        The first column is the directory of the run. The settings in which the runs differ are columns too.
        """
        rows = []
        for run in self.found:
            settings = {name: run.spec.get(KEYS[name].path) for name in self.settings}
            head = {"run": run.path.relative_to(self.folder).as_posix() if run.path != self.folder else run.path.name}
            rows += [{**head, **settings, **row} for row in run.rows]
        return make_frame(rows)

    @cached_property
    def settings(self) -> list[str]:
        """The keys in which the runs differ; always with the algorithm, eta and the seed."""
        named = {"algorithm", "eta", "seed"}
        return [
            name
            for name, key in KEYS.items()
            if key.path not in ("preset", "protocol")
            and (name in named or len({repr(run.spec.get(key.path)) for run in self.found}) > 1)
        ]

    def __len__(self) -> int:
        return len(self.found)

    def __iter__(self) -> Iterator[records.Run]:
        return iter(self.found)

    def __repr__(self) -> str:
        return f"<{len(self.found)} runs in {self.folder}>"

    def _repr_html_(self) -> str:
        last = [
            {"run": str(run.path), **{name: run.spec.get(KEYS[name].path) for name in self.settings}, **run.rows[-1]}
            for run in self.found
            if run.rows
        ]
        return f"<p>{html.escape(repr(self)[1:-1])}; last evaluation of each</p>{_format_html(last)}"


def find_runs(folder: str | Path) -> RunCollection:
    """Find all runs of a folder, at any depth.

    Args:
        folder: A folder of runs, the directory of one run, or a packed archive.

    Raises:
        InputError: There are no runs.
    """
    place = Path(folder).expanduser()
    return RunCollection(place, records.runs_under(place))


def make_frame(rows: Sequence[Mapping[str, Any]]) -> pandas.DataFrame:
    """Return rows as a data frame.

    Raises:
        InputError: pandas is not installed.
    """
    frame: pandas.DataFrame = import_optional("pandas", "a data frame").DataFrame(list(map(dict, rows)))
    return frame


def _make_axes() -> Axes:
    from matplotlib import pyplot  # noqa: PLC0415 - only notebooks and scripts that draw need it

    axes: Axes = pyplot.subplots(figsize=(5, 3.2), layout="constrained")[1]
    return axes


def _format(name: str, value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4f}" if any(part in name for part in FRACTIONS) else f"{value:.4g}"
    return str(value)


def _format_html(rows: Sequence[Mapping[str, Any]]) -> str:
    names = [name for name, value in rows[-1].items() if not isinstance(value, list | tuple | dict)]
    head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
    lines = ("".join(f"<td>{html.escape(_format(name, row.get(name)))}</td>" for name in names) for row in rows)
    return (
        f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(f'<tr>{line}</tr>' for line in lines)}</tbody></table>"
    )
