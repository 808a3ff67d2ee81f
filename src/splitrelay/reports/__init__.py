"""Tables from records: a setting is summed up over its seeds, laid out as the paper does, and written in any shape."""

from splitrelay.reports.accuracy import accuracy_table
from splitrelay.reports.forgetting_table import classes_table
from splitrelay.reports.head_to_head import winners_table
from splitrelay.reports.learning_rate_table import rates_table
from splitrelay.reports.runs_table import runs_table
from splitrelay.reports.seed_groups import Group, differing, grouped
from splitrelay.reports.summary import Summary, summarised
from splitrelay.table import Table

__all__ = [
    "Group",
    "Summary",
    "Table",
    "accuracy_table",
    "classes_table",
    "differing",
    "grouped",
    "rates_table",
    "runs_table",
    "summarised",
    "winners_table",
]
