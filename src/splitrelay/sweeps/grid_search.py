"""The grid search: for every setting, the learning rate that does best by a named rule."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from splitrelay.atomic_files import write_text
from splitrelay.errors import InputError, UnknownName, WorkError
from splitrelay.reports.table_layout import RULES
from splitrelay.runs.rows import LAST, compute_final_accuracy
from splitrelay.runs.run_directory import RunDirectory
from splitrelay.runs.spec import SEEDS
from splitrelay.sweeps.points import Point, Points, Settings, Values, points_of
from splitrelay.sweeps.sweep import Board

DEFAULT_RATES = (0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5)  # the rates that occur in the paper's table
FURTHEST = 8  # rates beyond its edge to which a grid is extended
Sweep = Callable[[Sequence[Point]], Board]


class Plan(Protocol):
    """Settings to search, each at several rates, and the rule by which the best is picked."""

    @property
    def tune(self) -> str:
        """The rule's name."""
        ...

    def points(self) -> Points:
        """Every setting at every rate of the grid."""
        ...

    def at(self, settings: Settings, etas: Sequence[float]) -> list[Point]:
        """One of them at other rates."""
        ...


@dataclass(frozen=True)
class Tried:
    """One rate of a grid, and its score: None where the run diverged."""

    eta: float
    score: float | None
    run: str

    @property
    def rank(self) -> tuple[float, float]:
        """The better the higher; of two as good the smaller rate."""
        return -math.inf if self.score is None else self.score, -self.eta


@dataclass(frozen=True)
class Choice:
    """The grid of one setting, from the smallest rate to the largest."""

    settings: Settings
    rates: tuple[Tried, ...]

    @property
    def best(self) -> Tried:
        """The rate that the rule picks."""
        return max(self.rates, key=lambda tried: tried.rank)

    @property
    def beyond(self) -> float | None:
        """The next rate, where the best is on the grid's edge; None where it is inside."""
        etas = [tried.eta for tried in self.rates]
        if self.best.score is None or self.best.eta not in (etas[0], etas[-1]):
            return None
        return next_rate(etas, up=self.best.eta == etas[-1])

    @property
    def between(self) -> list[float]:
        """The rates half-way, in the ratio, from the best to its neighbours."""
        etas = [tried.eta for tried in self.rates]
        at = etas.index(self.best.eta)
        return [
            _rounded(math.sqrt(self.best.eta * eta)) for eta in (*etas[max(at - 1, 0) : at], *etas[at + 1 : at + 2])
        ]


@dataclass(frozen=True)
class Search:
    """What to search: a spec's file, values for its keys (eta among them, or the paper's grid), and the rule."""

    file: Path | None
    values: Values
    tune: str = "test"

    def __post_init__(self) -> None:
        if self.tune not in RULES:
            raise UnknownName("rule for tune", self.tune, RULES)

    def points(self) -> Points:
        """Every setting at every rate; seed 1234, as in the paper, unless another is said."""
        found = points_of(self.file, self._values, self._varying)
        for point in found.points:
            if self.tune == "validation" and not point.spec.data.validation:
                hint = "Add validation=0.1: each client then keeps a tenth of its samples from training."
                raise InputError("tune=validation needs samples that are kept from training", hint=hint)
        return found

    def at(self, settings: Settings, etas: Sequence[float]) -> list[Point]:
        """The same setting at other rates."""
        fixed = {name: [text] for name, text in settings}
        values = {**self._values, **fixed, "eta": [f"{eta:.6g}" for eta in etas]}
        return points_of(self.file, values, self._varying).points

    @property
    def _values(self) -> Values:
        paper = {"seed": [str(SEEDS[0])], "eta": [f"{eta:g}" for eta in DEFAULT_RATES]}
        return {**self.values, **{name: paper[name] for name in paper if name not in self.values}}

    @property
    def _varying(self) -> list[str]:
        return [name for name, texts in self._values.items() if len(texts) > 1 or name == "eta"]


def search(plan: Plan, run: Sweep, *, extend: bool = False, fine: bool = False) -> list[Choice]:
    """The best rate of every setting. `run` runs points and keeps them in a folder; points it has are not run again."""
    choices = _chosen(plan, run(plan.points().points))
    for _ in range(FURTHEST if extend else 0):
        wanted = {choice.settings: [choice.beyond] for choice in choices if choice.beyond is not None}
        choices = _more(plan, run, choices, wanted)
        if not wanted:
            break
    if fine:
        choices = _more(plan, run, choices, {choice.settings: choice.between for choice in choices})
    return choices


def next_rate(etas: Sequence[float], up: bool) -> float:
    """The grid carried on in its own digits: 1 and 5 in every decade, or 1 and 3, or whatever it has."""
    digits = sorted({_digits(eta) for eta in etas})
    edge = max(etas) if up else min(etas)
    decade = math.floor(math.log10(edge))
    further = [_rounded(digit * 10.0**power) for power in range(decade - 1, decade + 2) for digit in digits]
    return min(eta for eta in further if eta > edge) if up else max(eta for eta in further if eta < edge)


def content(choices: Sequence[Choice], tune: str) -> dict[str, Any]:
    """The result for programs."""
    rule = f"mean {RULES[tune]} over the last {LAST} rounds; diverged runs are the worst"
    return {"tune": tune, "rule": rule, "settings": [_plain(choice) for choice in choices]}


def keep(choices: Sequence[Choice], tune: str, folder: Path) -> None:
    """grid.json, and every rate once more in grid.csv."""
    write_text(folder / "grid.json", json.dumps(content(choices, tune), indent=2) + "\n")
    text = io.StringIO()
    table = csv.DictWriter(text, list(dict.fromkeys(key for row in _rows(choices) for key in row)), lineterminator="\n")
    table.writeheader()
    table.writerows(_rows(choices))
    write_text(folder / "grid.csv", text.getvalue())


def _rows(choices: Sequence[Choice]) -> Iterator[dict[str, Any]]:
    for choice in choices:
        for tried in choice.rates:
            found = {"eta": tried.eta, "score": tried.score, "best": tried is choice.best, "run": tried.run}
            yield {**dict(choice.settings), **found}


def _plain(choice: Choice) -> dict[str, Any]:
    rates = [{"eta": tried.eta, "score": tried.score, "run": tried.run} for tried in choice.rates]
    found = {"eta": None if choice.best.score is None else choice.best.eta, "score": choice.best.score}
    return {**dict(choice.settings), **found, "on_edge": choice.beyond is not None, "rates": rates}


def _more(plan: Plan, run: Sweep, choices: Sequence[Choice], wanted: dict[Settings, list[float]]) -> list[Choice]:
    points = [point for settings, etas in wanted.items() for point in plan.at(settings, etas)]
    found = {choice.settings: choice.rates for choice in _chosen(plan, run(points))} if points else {}
    return [replace(choice, rates=_merged(choice.rates, found.get(choice.settings, ()))) for choice in choices]


def _merged(one: Sequence[Tried], other: Sequence[Tried]) -> tuple[Tried, ...]:
    return tuple(sorted({tried.eta: tried for tried in (*one, *other)}.values(), key=lambda tried: tried.eta))


def _chosen(plan: Plan, board: Board) -> list[Choice]:
    groups: dict[Settings, list[Tried]] = {}
    for settings, tried in _tried(plan, board):
        groups.setdefault(settings, []).append(tried)
    return [Choice(settings, _merged(rates, ())) for settings, rates in groups.items()]


def _tried(plan: Plan, board: Board) -> Iterator[tuple[Settings, Tried]]:
    for entry in board.entries.values():
        if entry.state not in ("done", "diverged"):
            raise WorkError(f"{entry.label} is {entry.state}, so the best rate is not known", value=entry.why or None)
        rows = RunDirectory(board.folder / entry.name).read_rows()
        score = compute_final_accuracy(rows, RULES[plan.tune]) if entry.state == "done" else None
        settings = tuple(setting for setting in entry.settings.items() if setting[0] != "eta")
        yield settings, Tried(float(entry.settings["eta"]), score, entry.name)


def _digits(eta: float) -> float:
    return _rounded(eta / 10.0 ** math.floor(math.log10(eta) + 1e-9))


def _rounded(eta: float) -> float:
    return float(f"{eta:.3g}")
