"""The theory's figures: what is drawn is what was computed, and nothing is drawn where nothing holds."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from splitrelay.reports.theory_figures import (
    FigureLabels,
    Panel,
    build_bound_panel,
    build_landscape_panel,
    build_rate_panel,
    build_step_panel,
    choose_steps,
    draw_bars,
    draw_stacks,
    draw_steps,
    find_gaps,
    format_number,
    save_stacks,
    stack_terms,
)
from splitrelay.theory import Problem
from tests.support.theory_problems import bound, rate, stepsizes

R = [float(rounds) for rounds in (4, 8, 12, 40, 100, 400, 1000, 4000)]
BASE: dict[str, Any] = {"L": 2, "mu": 1, "sigma2": 1, "zeta2": 4, "M": 10, "K": 5, "D2": 1}
LABELS = FigureLabels("SSL", BASE, "R", "E F(xbar) - F*", "strongly-convex")


def panel(rounds: list[float], label: str = "") -> Panel:
    found = bound("ssl", "strongly-convex", Problem(**BASE, R=np.array(rounds)), eta_tilde=1 / 12, outside="mask")
    return build_bound_panel(label, rounds, found, [1.0] * len(rounds))


def total_line(axis: Axes) -> Any:
    return axis.lines[0].get_ydata()


@pytest.mark.parametrize(
    ("applicable", "expected"),
    [
        ([True, True, True, True], []),
        ([False, True, True, True], [(1, 2)]),
        ([True, True, True, False], [(4, 8)]),
        ([True, False, True, False], [(1, 4), (4, 8)]),
        ([False, False, False, False], [(1, 8)]),
    ],
)
def test_hatched_stretches_end_where_the_curve_begins(applicable: list[bool], expected: list[Any]) -> None:
    assert find_gaps(np.array([1.0, 2.0, 4.0, 8.0]), np.array(applicable)) == expected


def test_the_stack_is_the_bound_and_stops_where_it_does_not_apply() -> None:
    figure = draw_stacks([panel(R)], LABELS)
    upper, lower = figure.axes
    drawn = np.asarray(total_line(upper))
    assert np.isnan(drawn[:2]).all()
    assert drawn[2:] == pytest.approx(panel(R).total[2:])
    assert upper.get_xscale() == upper.get_yscale() == "log"
    assert [patch.get_hatch() for axis in (upper, lower) for patch in axis.patches] == ["/////"] * 2
    assert upper.patches[0].get_extents().transformed(upper.transData.inverted()).x1 == pytest.approx(12)


def test_the_terms_are_piled_up_to_the_total() -> None:
    axis, piled = Figure().add_subplot(), panel(R[2:])
    stack_terms(axis, piled.x, piled.terms)
    tops = [max(vertex[1] for vertex in layer.get_paths()[0].vertices) for layer in axis.collections]
    assert len(tops) == 4
    assert tops == sorted(tops)
    assert tops[-1] == pytest.approx(piled.total.max())


def test_shares_add_up_to_one() -> None:
    assert sum(panel(R[2:]).shares.values()) == pytest.approx(np.ones(6))


def test_panels_side_by_side_share_one_scale() -> None:
    figure = draw_stacks([panel(R, "a"), panel([40.0, 400.0, 4000.0], "b")], LABELS)
    uppers = figure.axes[::2]
    assert [axis.get_title() for axis in uppers] == ["a", "b"]
    assert len({axis.get_ylim() for axis in uppers}) == 1


def test_the_scale_shows_every_total_and_the_level_from_which_on_they_say_nothing() -> None:
    low, high = draw_stacks([panel(R)], LABELS).axes[0].get_ylim()
    totals = panel(R).total[2:]
    assert low < totals.min() < totals.max() < high
    assert low < 1.0 < high


def test_the_legend_is_outside_every_panel() -> None:
    figure = draw_stacks([panel(R, "a"), panel(R, "b")], LABELS)
    figure.draw_without_rendering()
    legend = figure.legends[0].get_window_extent()
    assert not any(axis.get_window_extent().overlaps(legend) for axis in figure.axes)
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels[0] == "total"
    assert labels[-1] == "does not apply"


def test_what_applies_everywhere_has_no_hatching_in_its_legend() -> None:
    figure = draw_stacks([panel(R[2:])], LABELS)
    assert "does not apply" not in [text.get_text() for text in figure.legends[0].get_texts()]


def test_what_applies_nowhere_says_why() -> None:
    figure = draw_stacks([panel([2.0, 4.0, 8.0])], LABELS)
    upper = figure.axes[0]
    assert [text.get_text() for text in upper.texts] == ["applies nowhere here:\nneeds R >= 6 L/mu"]
    assert np.isnan(np.asarray(total_line(upper))).all()


def test_one_setting_is_drawn_as_bars() -> None:
    figure = draw_bars([panel([100.0])], LABELS)
    (axis,) = figure.axes
    widths = [bar.get_width() for bar in axis.patches]
    assert widths[-1] == pytest.approx(float(panel([100.0]).total[0]))
    assert sum(widths[:-1]) == pytest.approx(widths[-1])


def test_an_order_has_no_range_and_no_level() -> None:
    found = rate("ssl", "strongly-convex", Problem(**BASE, R=np.array(R)))
    figure = draw_stacks([build_rate_panel("", R, found)], LABELS)
    assert np.isfinite(np.asarray(total_line(figure.axes[0]))).all()
    assert not figure.axes[0].patches


def test_a_bound_of_nothing_can_be_drawn(tmp_path: Path) -> None:
    nothing = {**BASE, "sigma2": 0, "zeta2": 0, "D2": 0}
    found = bound("ssl", "general-convex", Problem(**nothing, R=np.array(R)), eta_tilde=1 / 12)
    assert save_stacks([build_bound_panel("", R, found, [0.0] * len(R))], LABELS, tmp_path / "a.png").exists()


def test_steps_are_drawn_inside_their_range() -> None:
    steps = stepsizes("ssl", "strongly-convex", Problem(**BASE, R=np.array(R)), outside="mask")
    left, right = draw_steps([build_step_panel("", R, steps, [1.0] * len(R))], LABELS).axes
    for line in left.lines:
        step = np.asarray(line.get_ydata())[2:]
        assert ((step >= np.asarray(steps["best"].low)[2:] * (1 - 1e-12)) & (step <= 1 / 12)).all()
    best = np.asarray(right.lines[2].get_ydata())
    assert best == pytest.approx(np.asarray(steps["best"].bound.total), nan_ok=True)


def test_steps_that_are_nowhere_allowed_say_why() -> None:
    steps = stepsizes("ssl", "strongly-convex", Problem(**BASE, R=np.array([2, 4])), outside="mask")
    for axis in draw_steps([build_step_panel("", [2.0, 4.0], steps, [1.0, 1.0])], LABELS).axes:
        assert [text.get_text() for text in axis.texts] == ["applies nowhere here:\nneeds R >= 6 L/mu"]


@pytest.mark.parametrize("case", ["strongly-convex", "general-convex"])
def test_the_landscape_of_one_setting_points_the_rules_out(case: Any) -> None:
    problem = Problem(**BASE, R=1000)
    steps = stepsizes("ssl", case, problem)
    x = choose_steps(steps["best"])
    panel = build_landscape_panel(bound("ssl", case, problem, eta_tilde=np.array(x), outside="mask"), steps, 1.0)
    marks = [line.get_xdata()[0] for line in draw_stacks([panel], LABELS).axes[0].lines[2:]]
    assert marks == pytest.approx([step.eta_tilde for step in steps.values()])
    assert x[0] < min(marks) <= max(marks) < x[-1]


# Labels


@pytest.mark.parametrize(
    ("value", "text"), [(2, "2"), (1 / 12, "0.08333"), (1e6, "10^{6}"), (2.5e-7, r"2.5\times 10^{-7}")]
)
def test_numbers_in_tex(value: float, text: str) -> None:
    assert format_number(value) == text


@pytest.mark.parametrize(("case", "symbol"), [("non-convex", r"$\zeta^2$"), ("general-convex", r"$\zeta_*^2$")])
def test_zeta2_is_what_its_case_makes_it(case: str, symbol: str) -> None:
    assert FigureLabels("", {}, "zeta2", "", case).x_label == symbol


def test_an_axis_carries_the_papers_symbol_and_its_unit() -> None:
    assert LABELS.x_label == "$R$ (rounds)"
    assert FigureLabels("", {}, "eta_tilde", "", "").x_label == r"$\tilde\eta$"


def test_a_caption_is_broken_into_lines_that_fit() -> None:
    long = FigureLabels("A headline that is far too long for a figure that is as narrow as this one", BASE, "R", "", "")
    lines = long.format_caption(2.0).splitlines()
    assert max(len(line) for line in lines[:2]) <= 36
    assert "".join(lines).count("=") == len(BASE)
    assert len(LABELS.format_caption(20.0).splitlines()) == 2
