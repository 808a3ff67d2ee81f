"""Tables from records: a setting is summed up over its seeds, laid out as the paper does, and written in any shape."""

from splitrelay.experiments.tables.accuracy import accuracy_table
from splitrelay.experiments.tables.classes import classes_table
from splitrelay.experiments.tables.contests import winners_table
from splitrelay.experiments.tables.groups import Group, differing, grouped
from splitrelay.experiments.tables.listing import runs_table
from splitrelay.experiments.tables.rates import rates_table
from splitrelay.experiments.tables.sheet import Sheet, write
from splitrelay.experiments.tables.summary import Summary, summarised

__all__ = [
    "Group",
    "Sheet",
    "Summary",
    "accuracy_table",
    "classes_table",
    "differing",
    "grouped",
    "rates_table",
    "runs_table",
    "summarised",
    "winners_table",
    "write",
]
