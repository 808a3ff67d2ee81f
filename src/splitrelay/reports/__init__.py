"""Tables from records: a setting is summed up over its seeds, laid out as the paper does, and written in any shape."""

from splitrelay.reports.accuracy import build_accuracy_table, build_rates_table
from splitrelay.reports.forgetting_table import build_classes_table
from splitrelay.reports.head_to_head import build_winners_table
from splitrelay.reports.runs_table import build_runs_table
from splitrelay.reports.seed_groups import Group, find_differing_keys, group_runs
from splitrelay.reports.summary import Summary, summarise_group
from splitrelay.table import Table

__all__ = [
    "Group",
    "Summary",
    "Table",
    "build_accuracy_table",
    "build_classes_table",
    "build_rates_table",
    "build_runs_table",
    "build_winners_table",
    "find_differing_keys",
    "group_runs",
    "summarise_group",
]
