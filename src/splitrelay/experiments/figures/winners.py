"""Who wins, by how much, and what that depends on: the gap between SSL and FedAvg against one factor at a time."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, NullLocator

from splitrelay.errors import InputError
from splitrelay.experiments.figures.lines import LETTERS_AN_INCH, OTHERS, Drawing, footnotes
from splitrelay.experiments.figures.style import BLUE, LOOK, VERMILION, drawn
from splitrelay.experiments.paper.cells import LAST
from splitrelay.experiments.runs import Run
from splitrelay.experiments.tables.contests import FACTORS, Contest, contests
from splitrelay.experiments.tables.names import data_label

AXES = {
    "C": "classes a client, C",
    "alpha": r"concentration, $\alpha$",
    "K": "local steps, $K$",
    "S": "clients a round, $S$",
}
MARKS = ("o", "s", "^", "D", "v", "P", "X", "*")
Series = dict[str, list[Contest]]


def winners_figure(runs: Sequence[Run], *, rule: str = "test", last: int = LAST) -> Drawing:
    """A panel for every factor that was varied alone somewhere; above zero SSL is ahead."""
    pairs, notes = _after_as_many_rounds(runs, rule, last)
    panels = told_once({factor: found for factor in FACTORS if (found := varied(pairs, factor))})
    if not panels:
        raise InputError("no factor is varied alone in these runs", limit=f"two values of one of {', '.join(FACTORS)}")
    caption = (
        "SSL minus FedAvg in test accuracy, each at its best rate, against one factor with the others as the key says; "
        "bars: one standard deviation over seeds."
    )
    width = 2.4 * max(len(panels), 2)
    lines = textwrap.wrap(" ".join(notes), round(LETTERS_AN_INCH * width))
    tallest = max(len(found) for found in panels.values())
    with drawn(width, 2.2 + 0.14 * tallest + 0.1 * len(lines)) as figure:
        axes = np.atleast_1d(figure.subplots(1, len(panels), sharey=True))
        for axis, (factor, found) in zip(axes, panels.items(), strict=True):
            _panel(axis, factor, found)
        axes[0].set_ylabel("SSL minus FedAvg (points)")
        _sides(axes[0])
        footnotes(figure, lines)
    return Drawing(figure, [caption, *notes])


def _after_as_many_rounds(runs: Sequence[Run], rule: str, last: int) -> tuple[list[Contest], list[str]]:
    """Contests of runs of one length: what ran longer is another contest."""
    pairs: list[Contest] = []
    notes: list[str] = []
    for R in sorted({run.spec.R for run in runs}):
        with suppress(InputError):  # none meet after so many rounds: perhaps others do
            found, said = contests([run for run in runs if run.spec.R == R], rule, last)
            pairs, notes = [*pairs, *found], [*notes, *said]
    return (pairs, list(dict.fromkeys(notes))) if pairs else contests(runs, rule, last)


def varied(pairs: Sequence[Contest], factor: str) -> Series:
    """Contests in which nothing but this factor differs, by what they have in common."""
    groups: Series = {}
    for pair in pairs:
        groups.setdefault(_rest(pair, factor), []).append(pair)
    return {
        name: sorted(found, key=lambda pair: pair.factors[factor])
        for name, found in groups.items()
        if len({pair.factors[factor] for pair in found}) > 1
    }


def told_once(panels: dict[str, Series]) -> dict[str, Series]:
    """Without the series that hold nothing but what longer ones in other panels show."""
    told: set[int] = set()
    kept: dict[str, Series] = {factor: {} for factor in panels}
    every = [(factor, name, pairs) for factor, found in panels.items() for name, pairs in found.items()]
    for factor, name, pairs in sorted(every, key=lambda series: -len(series[2])):
        if not told.issuperset(map(id, pairs)):
            kept[factor][name] = pairs
            told.update(map(id, pairs))
    return {factor: found for factor, found in kept.items() if found}


def _rest(pair: Contest, factor: str) -> str:
    spec, own = pair.ssl.best.spec, pair.factors
    everyone = own["S"] == spec.partition.M
    words = [data_label(spec.data.name), f"M={spec.partition.M}"]
    words += [
        f"{name}={own[name]:g}" for name in FACTORS if name not in (factor, "alpha") and not (name == "S" and everyone)
    ]
    if factor != "alpha" and own["alpha"] != 10:
        words.append(f"alpha={own['alpha']:g}")
    words.append(f"R={spec.R}")
    return ", ".join(words)


def _panel(axis: Axes, factor: str, found: Series) -> None:
    colours = (BLUE, VERMILION, *OTHERS)
    values = sorted({pair.factors[factor] for pairs in found.values() for pair in pairs})
    for j, (name, pairs) in enumerate(found.items()):
        x = [pair.factors[factor] * 1.03 ** (j - (len(found) - 1) / 2) for pair in pairs]  # side by side, not on top
        gaps, spread = [pair.gap for pair in pairs], np.nan_to_num([pair.spread for pair in pairs])
        look: Any = {"color": colours[j % len(colours)], "marker": MARKS[j % len(MARKS)], "markersize": 3.5}
        axis.errorbar(x, gaps, yerr=spread, capsize=2, linewidth=0.9, label=name, **look)
    axis.axhline(0, color="black", linewidth=0.8)
    axis.set_xscale("log")
    axis.xaxis.set_major_locator(FixedLocator(values))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.set_xticks(values, [f"{value:g}" for value in values])
    axis.set_xlim(values[0] / 1.35, values[-1] * 1.35)
    axis.set_xlabel(AXES[factor])
    axis.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), fontsize=6)


def _sides(axis: Axes) -> None:
    """Which side of zero is whose."""
    low, high = axis.get_ylim()
    room = max(high - low, 1.0) * 0.08
    low, high = min(low, -2 * room), max(high, 2 * room)
    axis.set_ylim(low - room / 2, high + room / 2)
    for y, name, words in ((high, "ssl", "SSL ahead"), (low, "fedavg", "FedAvg ahead")):
        axis.text(0.03, y, words, color=LOOK[name][0], fontsize=6, va="center", transform=axis.get_yaxis_transform())
