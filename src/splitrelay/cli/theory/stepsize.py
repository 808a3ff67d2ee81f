"""`splitrelay theory stepsize`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from splitrelay.cli.console import emit, say
from splitrelay.cli.theory import adapter, options
from splitrelay.cli.theory.adapter import Grid
from splitrelay.table import format_cell

if TYPE_CHECKING:
    from splitrelay.theory import Bound, StepSize

KEYS = (*options.QUANTITIES, options.ZETA2_STAR, options.CONSTANTS_KEY, options.HORIZON_KEY)
MAX_ROWS = 4  # of panels in a figure
BRANCHES = {
    "cap": "upper end",
    "low": "lower end",
    "log": "tuning lemma",
    "interior": "interior",
    "c1": "noise",
    "c2": "drift",
}
NOTES = (
    "printed: the paper's rule. mended: the same rule with both error terms (E14).",
    "best: the step that minimizes the bound.",
    adapter.wrap("A step that minimizes the bound is safe, but on most problems larger steps do better."),
)


@options.grid_command(
    KEYS,
    "stepsize ssl strongly-convex L=2 mu=1 sigma2=1 zeta2=4 M=10 K=5 R=1000 D2=1",
    options.algorithm_argument,
    options.case_argument,
)
def stepsize(alg: str, case: str, settings: tuple[str, ...], shape: str, figure: Path | None) -> None:
    """Choose the step by three rules, and compute the bound at each step.

    The rules are the paper's rule (printed), the same rule with the error term that it omits (mended, E14), and the
    exact minimizer of the bound (best). ALG and CASE are those of 'theory bound'.
    """
    adapter.show(StepSizeCalculation(alg, case), settings, shape, figure)


class StepSizeCalculation(adapter.Calculation["dict[str, StepSize]"]):
    """The steps of all rules, by the name of the rule."""

    keys = KEYS
    other_keys = dict.fromkeys(
        ("eta", "eta_tilde"), "This command finds the step; 'splitrelay theory bound' takes one."
    )

    def __init__(self, algorithm: Any, case: Any) -> None:
        self.algorithm, self.case = algorithm, case

    def compute(self, grid: Grid) -> dict[str, StepSize]:
        from splitrelay.theory import stepsizes

        outside: Any = "refuse" if grid.is_single else "mask"
        return stepsizes(self.algorithm, self.case, grid.problem, **grid.choices, outside=outside)

    def format_title(self, result: dict[str, StepSize]) -> str:
        bound = result["best"].bound
        return f"{adapter.NAMES[bound.algorithm]}: steps for {bound.statement}, {bound.constants} constants"

    def build_records(self, result: dict[str, StepSize], size: int) -> list[dict[str, Any]]:
        best = result["best"]
        records: list[dict[str, Any]] = adapter.split_settings({"low": best.low, "high": best.high, "rules": {}}, size)
        for rule, step in result.items():
            tree = {name: getattr(step, name) for name in ("eta", "eta_tilde", "branch", "tau", "explicit")}
            bounds = adapter.build_bound_records(step.bound, size)
            for record, fields, bound in zip(records, adapter.split_settings(tree, size), bounds, strict=True):
                bound_fields = {name: bound[name] for name in ("total", "terms", "conditions", "vacuous")}
                record["rules"][rule] = fields | bound_fields
        reasons = adapter.list_reasons(best.bound.conditions, best.applicable, size)
        for record, reason in zip(records, reasons, strict=True):
            record |= {"applicable": reason is None, "why_not": reason}
        return records

    def print_one(self, result: dict[str, StepSize], record: Mapping[str, Any], grid: Grid, shape: str) -> None:
        rules = record["rules"]
        step_ratio = rules["best"]["eta_tilde"] / rules["best"]["eta"]
        ends = []
        for name, scale in (("eta_tilde", 1.0), ("eta", step_ratio)):
            low, high = format_cell(record["low"] / scale), format_cell(record["high"] / scale)
            ends.append(f"{low} <= {name} <= {high}".removeprefix("0 <= "))
        say(f"Allowed: {ends[0]}, that is {ends[1]}.\n")
        columns = {"rule": list(rules)}
        for title, field in {"eta_tilde": "eta_tilde", "eta": "eta", "bound": "total", "vacuous": "vacuous"}.items():
            columns[title] = [fields[field] for fields in rules.values()]
        columns["decided by"] = [BRANCHES[fields["branch"]] for fields in rules.values()]
        emit(adapter.build_column_table(columns), None, shape)
        say(f"\nThe bound is on {result['best'].bound.measure}.")
        say("\n".join(NOTES))

    def build_columns(self, result: dict[str, StepSize], grid: Grid, is_csv: bool) -> dict[str, list[Any]]:
        columns, best = {}, result["best"]
        for rule, step in result.items():
            columns[f"{rule} eta_tilde"] = adapter.get_column(step.eta_tilde, grid.size)
            columns[f"{rule} bound"] = adapter.get_column(step.bound.total, grid.size)
        return columns | {"why not": adapter.list_reasons(best.bound.conditions, best.applicable, grid.size)}

    def get_notes(self, result: dict[str, StepSize], grid: Grid) -> tuple[str, Sequence[str]]:
        return f"bounds on {result['best'].bound.measure}", NOTES

    def get_panels(self, result: dict[str, StepSize]) -> Mapping[str, Bound]:
        return {rule: step.bound for rule, step in result.items()}

    def draw(self, grid: Grid, path: Path) -> None:
        from splitrelay.reports.theory_figures import build_step_panel, save_steps

        if grid.is_single:
            self._draw_landscape(grid, path)
            return
        results = [(part, self.compute(part)) for part in grid.split_panels(MAX_ROWS)]
        bound = results[0][1]["best"].bound
        labels = adapter.build_labels(grid, self.format_title(results[0][1]), bound.measure, bound.case)
        panels = [
            build_step_panel(
                adapter.format_panel_label(grid, part, labels),
                part.abscissa,
                steps,
                adapter.get_start_levels(bound, part),
            )
            for part, steps in results
        ]
        save_steps(panels, labels, path)

    def _draw_landscape(self, grid: Grid, path: Path) -> None:
        from splitrelay.reports.theory_figures import build_landscape_panel, choose_steps, save_stacks
        from splitrelay.theory import bound

        steps = self.compute(grid)
        over = Grid({**grid.values, "eta_tilde": choose_steps(steps["best"])})
        bounds = bound(self.algorithm, self.case, over.problem, **over.others, **over.choices, outside="mask")
        labels = adapter.build_labels(over, self.format_title(steps), bounds.measure, self.case)
        save_stacks(
            [build_landscape_panel(bounds, steps, adapter.get_start_level(bounds, grid.fixed)[1])], labels, path
        )
