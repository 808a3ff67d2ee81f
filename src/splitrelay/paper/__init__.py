"""Settings and printed results of the paper: cells, presets, studies, claims, figures and tables."""

from splitrelay.paper.cells import CELLS, Cell, Printed, cell

__all__ = ["CELLS", "Cell", "Printed", "cell"]
