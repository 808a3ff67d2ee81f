"""The grid search: for every setting, find the best learning rate by a named rule."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Protocol

from splitrelay.atomic_files import write_text
from splitrelay.errors import InputError, UnknownName, WorkError
from splitrelay.reports.statistics import Candidate, choose_candidate
from splitrelay.reports.table_layout import RULES
from splitrelay.runs.run_directory import RunDirectory, compute_final_accuracy, describe_final_rounds
from splitrelay.runs.spec import SEEDS
from splitrelay.sweeps.points import Point, Points, Settings, Values, expand_points
from splitrelay.sweeps.sweep import PointStatus, SweepStatus

DEFAULT_RATES = (0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5)  # the rates that occur in the paper's table
MAX_EXTENSIONS = 8  # rates that are added beyond the edge of a grid
RunPoints = Callable[[Sequence[Point]], SweepStatus]


class Plan(Protocol):
    """The settings of a search, their rates and tuning seeds, and the rule that chooses the best rate."""

    @property
    def tune(self) -> str:
        """Return the name of the rule."""
        ...

    def points(self) -> Points:
        """Return every setting at every rate of the grid."""
        ...

    def list_points(self, settings: Settings, etas: Sequence[float]) -> list[Point]:
        """Return the points of one setting at the given rates."""
        ...


@dataclass(frozen=True)
class RateScore:
    """One rate of a grid, and the accuracies of its tuning seeds.

    Attributes:
        scores: The accuracy of each seed, by the rule of the search. A diverged seed has none.
        runs: The names of the runs.
        end: The number of rounds.
        clip: The clipping norm.
        diverged: The number of seeds that diverged.
    """

    eta: float
    scores: tuple[float, ...]
    runs: tuple[str, ...]
    end: int
    clip: float | None = None
    diverged: int = 0

    @property
    def score(self) -> float | None:
        """Return the mean over the tuning seeds, or None if one of them diverged."""
        return fmean(self.scores) if self.scores and not self.diverged else None

    @property
    def candidate(self) -> Candidate:
        """Return the rate as a candidate of the one-standard-error rule. A diverged seed has the score 0."""
        return Candidate(self.eta, self.clip, (*self.scores, *[0.0] * self.diverged), self.diverged)


def choose_rate(rates: Sequence[RateScore]) -> RateScore:
    """Choose by the one-standard-error rule, in favour of clipping and of the smaller rate."""
    candidates = [tried.candidate for tried in rates]
    return rates[candidates.index(choose_candidate(candidates))]


@dataclass(frozen=True)
class Choice:
    """The grid of one setting, from the smallest rate to the largest."""

    settings: Settings
    rates: tuple[RateScore, ...]

    @property
    def best(self) -> RateScore:
        """Return the rate that the rule chooses."""
        return choose_rate(self.rates)

    @property
    def next_beyond_edge(self) -> float | None:
        """Return the next rate if the one with the highest mean is on the edge of the grid, else None."""
        etas = [tried.eta for tried in self.rates]
        peak = max(self.rates, key=lambda tried: (-1.0 if tried.score is None else tried.score, -tried.eta))
        if peak.score is None or peak.eta not in (etas[0], etas[-1]):
            return None
        return compute_next_rate(etas, up=peak.eta == etas[-1])

    @property
    def rates_between(self) -> list[float]:
        """Return the geometric means of the best rate and its neighbours."""
        etas = [tried.eta for tried in self.rates]
        at = etas.index(self.best.eta)
        return [_round(math.sqrt(self.best.eta * eta)) for eta in (*etas[max(at - 1, 0) : at], *etas[at + 1 : at + 2])]


@dataclass(frozen=True)
class Search:
    """A search from the command line: a spec file, values of keys, and the rule. Default rates are `DEFAULT_RATES`."""

    file: Path | None
    values: Values
    tune: str = "test"

    def __post_init__(self) -> None:
        if self.tune not in RULES:
            raise UnknownName("rule for tune", self.tune, RULES)

    def points(self) -> Points:
        """Return every setting at every rate and tuning seed: the paper's first seed unless others are given."""
        points = expand_points(self.file, self._list_values, self._varying)
        for point in points.points:
            if self.tune == "validation" and not point.spec.data.validation:
                hint = "Add validation=0.1: each client then keeps a tenth of its samples from training."
                raise InputError("tune=validation needs samples that are kept from training", hint=hint)
        return points

    def list_points(self, settings: Settings, etas: Sequence[float]) -> list[Point]:
        """Return one setting at other rates."""
        fixed = {name: [text] for name, text in settings}
        values = {**self._list_values, **fixed, "eta": [f"{eta:.6g}" for eta in etas]}
        return expand_points(self.file, values, self._varying).points

    @property
    def seeds(self) -> tuple[str, ...]:
        """Return the tuning seeds."""
        return tuple(self._list_values["seed"])

    def list_report_points(self, chosen: dict[Settings, RateScore], seeds: Sequence[int]) -> list[Point]:
        """Return the chosen rate of every setting with seeds that did not choose it.

        Raises:
            InputError: A seed is a tuning seed.
        """
        both = [seed for seed in seeds if str(seed) in self.seeds]
        if both:
            hint = "The accuracy of a rate with the seeds that chose it is too high. Give other seeds."
            raise InputError("the reported seeds must not choose the rates", value=both[0], hint=hint)
        points = []
        for settings, tried in chosen.items():
            if tried.score is not None:
                fixed = {name: [text] for name, text in settings}
                values = {
                    **self._list_values,
                    **fixed,
                    "eta": [f"{tried.eta:.6g}"],
                    "seed": [str(seed) for seed in seeds],
                }
                points += expand_points(self.file, values, [*dict(settings), "eta", "seed"]).points
        return points

    @property
    def _list_values(self) -> Values:
        paper = {"seed": [str(SEEDS[0])], "eta": [f"{eta:g}" for eta in DEFAULT_RATES]}
        return {**self.values, **{name: paper[name] for name in paper if name not in self.values}}

    @property
    def _varying(self) -> list[str]:
        return [name for name, texts in self._list_values.items() if len(texts) > 1 or name == "eta"]


def search_rates(plan: Plan, run: RunPoints, *, extend: bool = False, fine: bool = False) -> list[Choice]:
    """Find the best rate of every setting.

    Args:
        plan: The settings and rates.
        run: Runs points and returns their status. Finished points are not run again.
        extend: Add rates if the best one is on the edge of the grid.
        fine: Finally, add rates between the best one and its neighbours.
    """
    choices = _build_choices(plan, run(plan.points().points))
    for _ in range(MAX_EXTENSIONS if extend else 0):
        wanted = {
            choice.settings: [choice.next_beyond_edge] for choice in choices if choice.next_beyond_edge is not None
        }
        choices = _add_rates(plan, run, choices, wanted)
        if not wanted:
            break
    if fine:
        choices = _add_rates(plan, run, choices, {choice.settings: choice.rates_between for choice in choices})
    return choices


def compute_next_rate(etas: Sequence[float], up: bool) -> float:
    """Return the next rate of a grid with the same digits in every decade, for example 1 and 5, or 1 and 3."""
    digits = sorted({_round(eta / 10.0 ** math.floor(math.log10(eta) + 1e-9)) for eta in etas})
    edge = max(etas) if up else min(etas)
    decade = math.floor(math.log10(edge))
    further = [_round(digit * 10.0**power) for power in range(decade - 1, decade + 2) for digit in digits]
    return min(eta for eta in further if eta > edge) if up else max(eta for eta in further if eta < edge)


def choose_settings(choices: Sequence[Choice]) -> dict[Settings, RateScore]:
    """Return the chosen rate and clipping norm of every setting. Settings that differ in their norm only are one."""
    groups: dict[Settings, dict[RateScore, Settings]] = {}
    for choice in choices:
        fixed = tuple(setting for setting in choice.settings if setting[0] != "clip")
        groups.setdefault(fixed, {}).update(dict.fromkeys(choice.rates, choice.settings))
    best = [(choose_rate(list(tried)), tried) for tried in groups.values()]
    return {tried[rate]: rate for rate, tried in best}


def build_results(choices: Sequence[Choice], tune: str) -> dict[str, Any]:
    """Return the content of grid.json."""
    rounds = describe_final_rounds(tried.end for choice in choices for tried in choice.rates)
    rule = (
        f"mean {RULES[tune]} over the {rounds} and the tuning seeds, with the one-standard-error rule; rates with "
        "diverged seeds are the worst"
    )
    chosen = choose_settings(choices)
    settings = [{**_build_setting(choice), "chosen": choice.settings in chosen} for choice in choices]
    return {"tune": tune, "rule": rule, "settings": settings}


def write_results(choices: Sequence[Choice], tune: str, folder: Path) -> None:
    """Write grid.json, and grid.csv with a row for every rate and seed."""
    write_text(folder / "grid.json", json.dumps(build_results(choices, tune), indent=2) + "\n")
    text = io.StringIO()
    table = csv.DictWriter(
        text, list(dict.fromkeys(key for row in _list_rows(choices) for key in row)), lineterminator="\n"
    )
    table.writeheader()
    table.writerows(_list_rows(choices))
    write_text(folder / "grid.csv", text.getvalue())


def _list_rows(choices: Sequence[Choice]) -> Iterator[dict[str, Any]]:
    for choice in choices:
        for tried in choice.rates:
            found = {"eta": tried.eta, "score": tried.score, "best": tried is choice.best, "run": " ".join(tried.runs)}
            yield {**dict(choice.settings), **found}


def _build_setting(choice: Choice) -> dict[str, Any]:
    rates = [
        {"eta": tried.eta, "score": tried.score, "scores": list(tried.scores), "diverged": tried.diverged,
         "runs": list(tried.runs)}
        for tried in choice.rates
    ]  # fmt: skip
    found = {"eta": None if choice.best.score is None else choice.best.eta, "score": choice.best.score}
    edge = choice.next_beyond_edge is not None
    return {**dict(choice.settings), **found, "on_edge": edge, "rates": rates}


def _add_rates(
    plan: Plan, run: RunPoints, choices: Sequence[Choice], wanted: dict[Settings, list[float]]
) -> list[Choice]:
    points = [point for settings, etas in wanted.items() for point in plan.list_points(settings, etas)]
    found = {choice.settings: choice.rates for choice in _build_choices(plan, run(points))} if points else {}
    return [replace(choice, rates=_merge_rates(choice.rates, found.get(choice.settings, ()))) for choice in choices]


def _merge_rates(one: Sequence[RateScore], other: Sequence[RateScore]) -> tuple[RateScore, ...]:
    return tuple(sorted({tried.eta: tried for tried in (*one, *other)}.values(), key=lambda tried: tried.eta))


def _build_choices(plan: Plan, sweep: SweepStatus) -> list[Choice]:
    groups: dict[Settings, dict[float, list[PointStatus]]] = {}
    for entry in sweep.entries.values():
        if entry.state not in ("done", "diverged"):
            raise WorkError(f"{entry.label} is {entry.state}, so the best rate is not known", value=entry.why or None)
        settings = tuple(setting for setting in entry.settings.items() if setting[0] not in ("eta", "seed"))
        groups.setdefault(settings, {}).setdefault(float(entry.settings["eta"]), []).append(entry)
    return [
        Choice(
            settings, _merge_rates([_compute_score(plan, sweep, settings, eta, of) for eta, of in rates.items()], ())
        )
        for settings, rates in groups.items()
    ]


def _compute_score(
    plan: Plan, sweep: SweepStatus, settings: Settings, eta: float, entries: list[PointStatus]
) -> RateScore:
    """Return the accuracies of one rate. Each entry is a tuning seed."""
    done = [entry for entry in entries if entry.state == "done"]
    rows = [RunDirectory(sweep.folder / entry.name).read_rows() for entry in done]
    scores = [compute_final_accuracy(found, RULES[plan.tune]) for found in rows]
    known = tuple(score for score in scores if score is not None)
    names, clip = tuple(entry.name for entry in entries), dict(settings).get("clip", "none")
    norm = None if clip == "none" else float(clip)
    return RateScore(eta, known, names, entries[0].R, norm, len(entries) - len(known))


def _round(eta: float) -> float:
    return float(f"{eta:.3g}")
