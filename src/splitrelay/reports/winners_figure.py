"""Draw the gap between SSL and FedAvg as a function of one factor at a time."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, NullLocator

from splitrelay.errors import InputError
from splitrelay.reports.head_to_head import FACTORS, Comparison, describe_verdicts, find_comparisons, judge_together
from splitrelay.reports.labels import get_data_label
from splitrelay.reports.line_plots import LETTERS_AN_INCH, OTHERS, Drawing, footnotes, styles
from splitrelay.reports.statistics import MARGIN, UNDECIDED
from splitrelay.reports.style import BLACK, LOOK, open_figure
from splitrelay.reports.table_layout import AUTO
from splitrelay.runs.records import Run
from splitrelay.runs.run_directory import LAST

AXES = {
    "C": "classes a client, C",
    "alpha": r"concentration, $\alpha$",
    "K": "local steps, $K$",
    "S": "clients a round, $S$",
}
MARKS = ("o", "s", "^", "D", "v", "P", "X", "*")
ACROSS = 3  # panels in a row
Words = tuple[
    str, ...
]  # what the comparisons of a series have in common, the data set first, then the number of clients
Series = dict[Words, list[Comparison]]
Find = Callable[[Sequence[Run]], tuple[list[Comparison], list[str]]]


@dataclass(frozen=True)
class Panel:
    """The series that vary one factor, for one number of clients."""

    factor: str
    series: Series

    @property
    def common(self) -> list[str]:
        """Return the settings that all series have in common, without the data set."""
        first, *others = self.series
        return [word for word in first[1:] if all(word in words for words in others)]

    def own(self, words: Words) -> Words:
        """Return the settings of one series that the others do not have, without the data set."""
        return tuple(word for word in words[1:] if word not in self.common)

    @property
    def bars(self) -> list[tuple[float, float, float]]:
        """Return the gap of every comparison, and both ends of its bar."""
        pairs = [pair for found in self.series.values() for pair in found]
        return [(pair.gap, *_get_ends(pair)) for pair in pairs]


def draw_winners(
    runs: Sequence[Run],
    *,
    rule: str = AUTO,
    last: int = LAST,
    tuning: Sequence[int] = (),
    margin: float = MARGIN,
) -> Drawing:
    """Draw one panel per factor that was varied alone, with the verdicts of all comparisons taken as one table."""
    pairs, notes = _after_as_many_rounds(runs, lambda some: find_comparisons(some, rule, last, tuning))
    pairs = judge_together(pairs, margin)
    notes = [*describe_verdicts([pair.judgement for pair in pairs], "SSL", "FedAvg"), *notes]
    panels = sort_by_size(describe_once({factor: found for factor in FACTORS if (found := find_varied(pairs, factor))}))
    if not panels:
        raise InputError("no factor is varied alone in these runs", limit=f"two values of one of {', '.join(FACTORS)}")
    caption = (
        "SSL minus FedAvg in test accuracy, each at its best rate, by one factor; the legend gives the others. Bars: "
        "bootstrap 95 % intervals over paired seeds; a number shows the end of a bar that leaves the frame. Filled "
        "marks: one is ahead after Holm's correction for all comparisons, or both are even; hollow marks: undecided. "
        f"Grey: within {margin:g} points."
    )
    across, down = min(len(panels), ACROSS), -(-len(panels) // ACROSS)
    width = 2.5 * max(across, 2)
    lines = textwrap.wrap(" ".join(notes), round(LETTERS_AN_INCH * width))
    keys = sum(max(len(panel.series) for panel in panels[at : at + across]) for at in range(0, len(panels), across))
    with open_figure(width, 2.2 * down + 0.14 * keys + 0.1 * len(lines)) as figure:
        axes = figure.subplots(down, across, sharey=True, squeeze=False).flat
        colours = dict(zip(dict.fromkeys(words[0] for panel in panels for words in panel.series), OTHERS, strict=False))
        limits = _limits(panels)
        for j, (axis, panel) in enumerate(zip(axes, panels, strict=False)):
            axis.set_ylim(*limits)
            axis.axhspan(-margin, margin, color="0.9", zorder=0)
            _draw_panel(axis, panel, colours)
            axis.set_ylabel("" if j % across else "SSL minus FedAvg (points)")
        for axis in figure.axes[len(panels) :]:
            axis.remove()
        _sides(figure.axes[0])
        footnotes(figure, lines)
    return Drawing(figure, [caption, *notes])


def _after_as_many_rounds(runs: Sequence[Run], find: Find) -> tuple[list[Comparison], list[str]]:
    """Return comparisons of runs with the same number of rounds. Longer runs are separate comparisons."""
    pairs: list[Comparison] = []
    notes: list[str] = []
    for R in sorted({run.spec.R for run in runs}):
        with suppress(InputError):  # no comparison with this number of rounds; there may be others
            found, said = find([run for run in runs if run.spec.R == R])
            pairs, notes = [*pairs, *found], [*notes, *said]
    return (pairs, list(dict.fromkeys(notes))) if pairs else find(runs)


def find_varied(pairs: Sequence[Comparison], factor: str) -> Series:
    """Return comparisons that differ only in this factor, by their common settings."""
    groups: Series = {}
    for pair in pairs:
        groups.setdefault(_rest(pair, factor), []).append(pair)
    return {
        words: sorted(found, key=lambda pair: pair.factors[factor])
        for words, found in groups.items()
        if len({pair.factors[factor] for pair in found}) > 1
    }


def describe_once(panels: dict[str, Series]) -> dict[str, Series]:
    """Drop series whose comparisons are all shown by longer series in other panels."""
    shown: set[int] = set()
    kept: dict[str, Series] = {factor: {} for factor in panels}
    every = [(factor, words, pairs) for factor, found in panels.items() for words, pairs in found.items()]
    for factor, words, pairs in sorted(every, key=lambda series: -len(series[2])):
        if not shown.issuperset(map(id, pairs)):
            kept[factor][words] = pairs
            shown.update(map(id, pairs))
    return {factor: found for factor, found in kept.items() if found}


def sort_by_size(panels: dict[str, Series]) -> list[Panel]:
    """Return one panel per (factor, number of clients). Cross-device and cross-silo results are not mixed."""
    found: dict[tuple[str, str], Series] = {}
    for factor, series in panels.items():
        for words, pairs in series.items():
            found.setdefault((factor, words[1]), {})[words] = pairs
    return [Panel(factor, dict(sorted(series.items(), key=_describe_place))) for (factor, _), series in found.items()]


def _describe_place(one: tuple[Words, list[Comparison]]) -> tuple[list[float], str]:
    """Return the sort key of a series: its other factors, then its data, so that most panels use the same marks."""
    words, (first, *_) = one
    return [first.factors[name] for name in FACTORS if f"{name}={first.factors[name]:g}" in words], words[0]


def _rest(pair: Comparison, factor: str) -> Words:
    spec, own = pair.ssl.best.spec, pair.factors
    everyone = own["S"] == spec.partition.M
    words = [get_data_label(spec.data.name), f"M={spec.partition.M}"]
    words += [
        f"{name}={own[name]:g}" for name in FACTORS if name not in (factor, "alpha") and not (name == "S" and everyone)
    ]
    if factor != "alpha" and own["alpha"] != 10:
        words.append(f"alpha={own['alpha']:g}")
    return (*words, f"R={spec.R}")


def _draw_panel(axis: Axes, panel: Panel, colours: Mapping[str, str]) -> None:
    """Draw a panel. The colour is the data set, the mark is the other settings."""
    factor, series = panel.factor, panel.series
    values = sorted({pair.factors[factor] for pairs in series.values() for pair in pairs})
    marks = styles(panel.own(words) for words in series)
    aside = (1.82 * values[-1] / values[0]) ** 0.012  # side by side, not on top
    for j, (words, pairs) in enumerate(series.items()):
        x = [pair.factors[factor] * aside ** (j - (len(series) - 1) / 2) for pair in pairs]
        colour, rest = colours.get(words[0], BLACK), panel.own(words)
        mark = MARKS[list(marks).index(rest) % len(MARKS)]
        look: Any = {"color": colour, "marker": mark, "linestyle": marks[rest], "markersize": 3.5, "linewidth": 0.9}
        gaps, ends = [pair.gap for pair in pairs], [_get_ends(pair) for pair in pairs]
        bars = [[gap - low for gap, (low, _) in zip(gaps, ends, strict=True)],
                [high - gap for gap, (_, high) in zip(gaps, ends, strict=True)]]  # fmt: skip
        axis.errorbar(x, gaps, yerr=bars, capsize=2, label=", ".join([words[0], *rest]), **look)
        for at, pair, end in zip(x, pairs, ends, strict=True):
            if pair.judgement.verdict == UNDECIDED:
                axis.plot([at], [pair.gap], color=colour, marker=mark, markersize=3.5, mfc="white", zorder=4)
            _ends(axis, at, end, colour)
    axis.axhline(0, color="black", linewidth=0.8)
    axis.set_xscale("log")
    axis.xaxis.set_major_locator(FixedLocator(values))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.set_xticks(values, [f"{value:g}" for value in values])
    axis.set_xlim(values[0] / 1.35, values[-1] * 1.35)
    axis.set_xlabel(AXES[factor])
    title = ", ".join(panel.common)
    axis.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), fontsize=6, title=title, title_fontsize=7)


def _get_ends(pair: Comparison) -> tuple[float, float]:
    """Return both ends of the interval, or the gap itself for one seed."""
    interval = pair.judgement.interval
    return (pair.gap, pair.gap) if math.isnan(interval.low) else (interval.low, interval.high)


def _ends(axis: Axes, x: float, ends: tuple[float, float], colour: str) -> None:
    """Mark a bar that leaves the frame with an arrow and the number at its end."""
    for end, edge, mark, room in zip(ends, axis.get_ylim(), "v^", (-1, 1), strict=True):
        if (end - edge) * room > 0:
            axis.plot([x], [edge], marker=mark, color=colour, markersize=4, linestyle="", clip_on=False)
            how: Any = {"textcoords": "offset points", "fontsize": 6, "color": colour, "ha": "right"}
            axis.annotate(f"{end:.0f}", (x, edge), (-4, -5 * room), **how)


def _limits(panels: Sequence[Panel]) -> tuple[float, float]:
    """Return limits that include all gaps and their bars, except bars that are much longer than the range of gaps."""
    gaps, lows, highs = map(list, zip(*(bar for panel in panels for bar in panel.bars), strict=True))
    room = 0.35 * (max(*gaps, 0.0) - min(*gaps, 0.0)) + 1.0
    low, high = max(min(lows), min(gaps) - room), min(max(highs), max(gaps) + room)
    margin = 0.08 * max(high - low, 1.0)
    return min(low, -2 * margin) - margin, max(high, 2 * margin) + margin


def _sides(axis: Axes) -> None:
    """Label the side of zero on which each algorithm is ahead."""
    for y, name, words in ((0.96, "ssl", "SSL ahead"), (0.04, "fedavg", "FedAvg ahead")):
        how: Any = {"fontsize": 6, "ha": "right", "va": "center", "transform": axis.transAxes}
        axis.text(0.97, y, words, color=LOOK[name][0], **how)
