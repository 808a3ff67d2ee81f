"""`splitrelay theory compare`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from splitrelay.cli.console import emit, say
from splitrelay.cli.theory import adapter, options
from splitrelay.cli.theory.adapter import Grid
from splitrelay.table import Table, format_cell

if TYPE_CHECKING:
    from splitrelay.theory import Bound, Comparison, Side

KEYS = (*options.QUANTITIES, options.ZETA2_STAR, options.ETA_TILDE, options.CONSTANTS_KEY, options.HORIZON_KEY)
NAMES = {
    "ssl": "SSL",
    "fedavg": "FedAvg",
    "minibatch-sgd": "minibatch SGD",
    "ssl-swor": "SSL SWOR",
    "fedavg-swor": "FedAvg SWOR",
    "fedavg-swr": "FedAvg SWR",
    "equal": "both are equal",
    "none": "unknown, one of the two does not apply",
}
TERMS = ("optimization", "noise", "sampling", "noise drift", "heterogeneity drift")
BOUND_FIELDS = ("total", "terms", "eta", "eta_tilde", "vacuous", "applicable", "why_not", "conditions", "statement")
NOTES = (
    "Minibatch SGD makes one step per round with the mean of M K gradients, so it has no drift. In order, neither of"
    " the two beats it, as the paper says.",
    "You may conclude: which worst case is smaller in rounds (not in time or bytes); that eta up to 1/(6 L M K) for SSL"
    " (1/(6 L S K) with S clients a round) and 1/(6 L K) for FedAvg is safe.",
    "You may not conclude: that an algorithm is worse on your problem, which eta or K is best, how the best eta of"
    " the two relate, or which error remains."
    " A short pilot over a grid of eta answers these questions.",
)
USEFUL_K = {
    "ssl, order": "SSL, by order: (sigma2/zeta2) (mu/L) R",
    "ssl, at its step": "SSL, with the bound's constants at its eta_tilde",
    "fedavg, order": "FedAvg, by order: the same / M",
    "fedavg, at its step": "FedAvg, with the bound's constants at its eta_tilde",
}


@options.grid_command(
    KEYS,
    "compare strongly-convex L=2 mu=1 sigma2=1 zeta2=4 M=10 S=2 K=5 R=1000 D2=1",
    options.case_argument,
)
def compare(case: str, settings: tuple[str, ...], shape: str, figure: Path | None) -> None:
    """Compare the bounds of SSL, FedAvg and minibatch SGD, term by term.

    The comparison is at equal rounds with all clients. If S is given, it is also at equal compute: R rounds of FedAvg
    with S clients against S R/M rounds of SSL with all clients and R rounds of SSL with S clients. Each algorithm has
    the step that minimizes its own bound, or all have the eta_tilde that you give.
    """
    adapter.show(CompareCalculation(case), settings, shape, figure)


class CompareCalculation(adapter.Calculation["Comparison"]):
    """SSL, FedAvg and minibatch SGD side by side."""

    keys = KEYS
    other_keys = {"eta": "The same eta is a different step in each algorithm. Give eta_tilde, or omit it."}  # noqa: RUF012

    def __init__(self, case: Any) -> None:
        self.case = case

    def compute(self, grid: Grid) -> Comparison:
        from splitrelay.theory import compare

        return compare(self.case, grid.problem, **grid.others, **grid.choices)

    def format_title(self, result: Comparison) -> str:
        return f"SSL against FedAvg, {result.case}, {result.constants} constants"

    def build_records(self, result: Comparison, size: int) -> list[dict[str, Any]]:
        records: list[dict[str, Any]] = adapter.split_settings({"equal_rounds": {}, "equal_compute": {}}, size)
        for group in ("equal_rounds", "equal_compute"):
            for name, side in getattr(result, group).items():
                for record, fields in zip(records, _build_side_records(side, size), strict=True):
                    record[group][name] = fields
        tree = {"smaller": result.smaller, "conditions": adapter.get_condition_fields(result.conditions)}
        tree |= {"useful_K": result.useful_K, "case": result.case, "constants": result.constants}
        tree["notes"] = list(result.notes)
        rest = adapter.split_settings(tree, size)
        return [record | fields for record, fields in zip(records, rest, strict=True)]

    def print_one(self, result: Comparison, record: Mapping[str, Any], grid: Grid, shape: str) -> None:
        emit(_build_side_table(record["equal_rounds"], "At equal rounds, all clients taking part"), None, shape)
        say(f"Smaller bound: {NAMES[record['smaller']['equal rounds']]}.\n")
        if record["equal_compute"]:
            title = "At equal compute, SSL over S R/M rounds with all clients, the others with S of M clients"
            emit(_build_side_table(record["equal_compute"], title), None, shape)
            for sampling in ("without replacement", "with replacement"):
                smaller = NAMES[record["smaller"][f"equal compute, {sampling}"]]
                say(f"Smaller bound, SSL over S R/M rounds against FedAvg {sampling}: {smaller}.")
            if "S clients a round, without replacement" in record["smaller"]:
                smaller = NAMES[record["smaller"]["S clients a round, without replacement"]]
                say(f"Smaller bound, both with S clients a round without replacement: {smaller}.")
            say("")
        if record["conditions"]:
            parts = [condition["name"].rsplit(" (", 1) for condition in record["conditions"]]
            short = [{**c, "name": name} for c, (name, _) in zip(record["conditions"], parts, strict=True)]
            emit(adapter.build_condition_table(short), None, shape)
            say("\n".join(f"{name}: {purpose.rstrip(')')}." for name, purpose in parts) + "\n")
        useful = [(USEFUL_K[name], value) for name, value in record["useful_K"].items()]
        emit(Table(("K beyond which more local steps stop helping the bound", "K"), useful), None, shape)
        say("\n" + "\n".join(self.get_notes(result, grid)[1]))

    def build_columns(self, result: Comparison, grid: Grid, is_csv: bool) -> dict[str, list[Any]]:
        values: dict[str, Any] = {}
        for label, bound in _get_bounds(result, "SSL over S R/M").items():
            values[label] = bound.total
            if is_csv:  # only CSV has the terms, because a page is too narrow for them
                values |= {f"{label}: {term}": value for term, value in bound.terms.items()}
        values |= {f"smaller at {group}": names for group, names in result.smaller.items()}
        return {name: adapter.get_column(value, grid.size) for name, value in values.items()}

    def get_notes(self, result: Comparison, grid: Grid) -> tuple[str, Sequence[str]]:
        return "", [adapter.wrap(note) for note in (*result.notes, *NOTES)]

    def count_panels(self, grid: Grid) -> int:
        return 7 if "S" in grid.values else 3

    def get_panels(self, result: Comparison) -> Mapping[str, Bound]:
        return _get_bounds(result, "SSL over $SR/M$ rounds")


def _get_bounds(result: Comparison, ssl_label: str) -> dict[str, Bound]:
    """Return every bound by its label. SSL at equal compute has a label of its own."""
    groups = ((result.equal_rounds, NAMES), (result.equal_compute, NAMES | {"ssl": ssl_label}))
    return {
        labels[name]: side.bound for sides, labels in groups for name, side in sides.items() if side.bound is not None
    }


def _build_side_records(side: Side, size: int) -> list[dict[str, Any]]:
    """Return one record per setting: the rounds, the bound and the order of one algorithm."""
    tree: dict[str, Any] = {
        "rounds": side.rounds,
        "total": None,
        "terms": {},
        "applicable": False,
        "why_not": side.why_not,
    }
    records: list[dict[str, Any]] = adapter.split_settings(tree, size)
    if side.bound is not None:
        for record, bound in zip(records, adapter.build_bound_records(side.bound, size), strict=True):
            record |= {name: bound[name] for name in BOUND_FIELDS}
            if not bound["applicable"] and record["rounds"] != record["rounds"]:  # NaN: S R/M is less than one round
                record["why_not"] = side.why_not
    if side.rate is not None:
        orders = {name: getattr(side.rate, name) for name in ("total", "terms", "dominant")}
        for record, order in zip(records, adapter.split_settings(orders, size), strict=True):
            record["order"] = order
    return records


def _build_side_table(sides: Mapping[str, Mapping[str, Any]], title: str) -> Table:
    """Build a table with one column per algorithm: rounds, step, terms, total, and the dominant term."""
    shown = {name: side for name, side in sides.items() if side["total"] is not None or side["why_not"]}
    terms = sorted({name for side in shown.values() for name in side["terms"]}, key=TERMS.index)
    lines: dict[str, list[Any]] = {
        key: [side.get(key) for side in shown.values()] for key in ("rounds", "eta_tilde", "eta")
    }
    lines |= {term: [side["terms"].get(term) for side in shown.values()] for term in terms}
    lines |= {key: [side.get(key) for side in shown.values()] for key in ("total", "vacuous")}
    lines["for large R"] = [side.get("order", {}).get("dominant") for side in shown.values()]
    rows = [(name, *map(format_cell, values)) for name, values in lines.items()]
    notes = [f"{NAMES[name]}: {side['why_not']}" for name, side in shown.items() if side["why_not"]]
    return Table(("bound", *(NAMES[name] for name in shown)), rows, title, notes)
