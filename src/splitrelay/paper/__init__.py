"""What the paper ran and what it printed: its cells, rates, rounds and results, as data."""

from splitrelay.paper.cells import CELLS, SEEDS, Cell, Printed, cell

__all__ = ["CELLS", "SEEDS", "Cell", "Printed", "cell"]
