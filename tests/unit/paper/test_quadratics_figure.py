"""Panels of the quadratics figure: numbers are where they belong, and nothing is drawn outside a frame."""

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from splitrelay.paper.quadratics_figure import Panel, PanelFigure

PANEL = Panel(left=1, bottom=2, width=4, height=3, last=500, low=1e-5, high=10)


def test_the_corners_are_the_ends_of_both_scales() -> None:
    assert (PANEL.x([0, 250, 500]) == [1, 3, 5]).all()
    assert PANEL.y([1e-5, 1e-2, 10]) == pytest.approx([2, 3.5, 5])


def test_ticks_stand_at_the_numbers_that_they_name() -> None:
    assert list(PANEL.ticks_across()) == [(1, "0"), (3, "250"), (5, "500")]
    assert [words for _, words in PANEL.ticks_up()] == ["$10^{-5}$", "$10^{-3}$", "$10^{-1}$", "$10^{1}$"]
    assert [y for y, _ in PANEL.ticks_up()] == pytest.approx([2, 3, 4, 5])


def test_one_round_has_whole_ticks() -> None:
    assert [words for _, words in Panel(0, 0, 1, 1, 1, 0.1, 10).ticks_across()] == ["0", "1"]


def test_a_band_ends_at_the_frame_also_where_a_run_diverged() -> None:
    sheet = PanelFigure(Figure())
    sheet.band(PANEL, [0, 500], [1e-9, 1e-2], [1e-3, np.inf], "black")
    (points, _), *_ = sheet.bands
    assert points[:, 1].min() == 2 and points[:, 1].max() == 5


def test_a_curve_is_cut_off_at_the_frame() -> None:
    sheet = PanelFigure(figure := Figure(dpi=100))
    sheet.curve(PANEL, [0, 500], [10, 1e-9], "black", "-")
    (line,) = figure.findobj(Line2D)
    assert line.get_clip_box().extents.tolist() == [100, 200, 500, 500]
