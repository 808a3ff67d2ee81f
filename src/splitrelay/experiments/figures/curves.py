"""Accuracy against rounds: the mean over seeds with its standard deviation, one panel for each partition."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from splitrelay.experiments.demo import Cell
from splitrelay.experiments.figures.style import LABEL, LOOK, drawn, save


def draw(cells: Sequence[Cell], path: Path) -> Path:
    """Side by side, on one scale."""
    panels = sorted({cell.C for cell in cells})
    with drawn(2.6 * len(panels) + 0.3, 2.1) as figure:
        axes = np.atleast_1d(figure.subplots(1, len(panels), sharey=True))
        for axis, C in zip(axes, panels, strict=True):
            for cell in (cell for cell in cells if cell.C == C):
                accuracy = 100 * np.array([[look.score.accuracy for look in run.looks] for run in cell.outcomes])
                rounds = [look.r for look in cell.outcomes[0].looks]
                mean, spread = accuracy.mean(0), accuracy.std(0, ddof=1)
                colour, line = LOOK[cell.algorithm]
                axis.plot(rounds, mean, line, color=colour, label=rf"{LABEL[cell.algorithm]}, $\eta={cell.eta:g}$")
                axis.fill_between(rounds, mean - spread, mean + spread, color=colour, alpha=0.2, linewidth=0)
            axis.set_title(f"ExDir({C}, 10)")
            axis.set_xlabel("training rounds")
            axis.set_xlim(rounds[0], rounds[-1])
            axis.set_ylim(0, 100)
            axis.legend(loc="best")
        axes[0].set_ylabel("test accuracy (%)")
        return save(figure, path)
