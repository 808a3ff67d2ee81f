"""`splitrelay demo`."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from splitrelay.cli.click_extensions import Command
from splitrelay.cli.console import emit, format_option, note, prepare_folder, say
from splitrelay.table import Table

if TYPE_CHECKING:
    from splitrelay.paper.demo import Cell, Outcome

LABEL = {"ssl": "SSL", "fedavg": "FedAvg"}
DEFAULT = Path("results/demo")
PACE = 4  # rows after which the time left is estimated


@click.command(cls=Command, example="splitrelay demo")
@click.option("--out", type=click.Path(path_type=Path), default=DEFAULT, show_default=True,
              help="Where the figure and the runs go.")  # fmt: skip
@click.option("--workers", type=click.IntRange(min=1), help="Processes at work (default: one a core).")
@format_option
def demo(out: Path, workers: int | None, shape: str) -> None:
    """See it work: SSL against FedAvg on real digits, a LeNet cut in two, ten clients.

    Each algorithm runs at the best rate of a small grid, with three seeds, on clients that hold one class each and
    on clients that hold two. The same numbers every time; under a minute on two cores.
    """
    if shape == "table":
        prepare_folder(out)
    from splitrelay.paper import demo as plan
    from splitrelay.reports.curves import draw

    if shape == "table":
        from splitrelay.cli.partition.terminal_plot import choose_marks, get_width, plot_counts
        from splitrelay.paper.demo import CLASSES, SEEDS, partition

        for C in CLASSES:
            dealt = partition(C, SEEDS[0])
            say(f"{dealt.title}: who holds which digits")
            say(plot_counts(dealt.counts.tolist(), dealt.classes.tolist(), choose_marks(), get_width()))
            say("")
    with plan.Workers(workers, out / "runs" if shape == "table" else None) as pool:
        total = len(plan.search()) + len(plan.ALGORITHMS) * len(plan.CLASSES) * (len(plan.SEEDS) - 1)
        progress = Progress(total)
        outcomes = [progress.print_row(outcome) for outcome in pool.outcomes(plan.search())]
        outcomes += [progress.print_row(outcome) for outcome in pool.outcomes(plan.list_repeats(outcomes))]
    cells = plan.cells(outcomes)
    emit(_build_table(cells), [_build_payload(cell) for cell in cells], shape)
    if shape == "table":
        for sentence in _describe_verdicts(cells):
            say(sentence)
        say(f"figure: {draw(cells, out / 'demo.png')}")
        folder = shlex.quote(str(out.parent if out == DEFAULT else out))
        say(f"Next, see the runs in your browser: splitrelay page {folder} (in a checkout: ./go page {folder})")


class Progress:
    """Prints a row for each finished run, with the time left. The time before the first row is start-up."""

    def __init__(self, total: int) -> None:
        self.total, self.done, self.first = total, 0, 0.0
        note("  run  partition     algorithm  rate  seed  accuracy     MB   left")

    def print_row(self, outcome: Outcome) -> Outcome:
        """Print the row of a run, and return its outcome."""
        self.done += 1
        self.first = self.first or time.perf_counter()
        left, point, number = "", outcome.point, f"{self.done}/{self.total}"
        if self.done >= PACE:
            left = f"{(time.perf_counter() - self.first) / (self.done - 1) * (self.total - self.done):.0f} s"
        what = f"{number:>5}  ExDir({point.C}, 10)  {LABEL[point.algorithm]:<9} {point.eta:>5g} {point.seed:>5}"
        accuracy, megabytes = "diverged", ""
        if not outcome.failed:
            accuracy, megabytes = f"{outcome.accuracy:.1%}", f"{outcome.traffic / 1e6:.1f}"
        note(f"{what} {accuracy:>9} {megabytes:>6} {left:>6}".rstrip())
        return outcome


def _build_table(cells: Sequence[Cell]) -> Table:
    from splitrelay.paper.demo import LAST, R

    rows = []
    for cell in cells:
        rate = f"{cell.eta:g}{'*' if cell.on_edge else ''}"
        accuracy = f"{100 * cell.mean:.1f} ± {100 * cell.spread:.1f}"
        megabytes = f"{cell.outcomes[0].traffic / 1e6:.1f}"
        rows.append((f"ExDir({cell.C}, 10)", LABEL[cell.algorithm], rate, accuracy, megabytes))
    notes = ["* the best rate is on the grid's edge."] if any(cell.on_edge for cell in cells) else []
    columns = ("partition", "algorithm", "rate", "accuracy (%)", "MB")
    return Table(columns, rows, f"Test accuracy, mean and deviation over 3 seeds, last {LAST} of {R} rounds", notes)


def _describe_verdicts(cells: Sequence[Cell]) -> list[str]:
    """Return the verdict for each partition, by the rule of the table `winners`, with paired seeds."""
    from splitrelay.paper.demo import R
    from splitrelay.reports.statistics import judge_differences

    pairs = []
    for C in sorted({cell.C for cell in cells}):
        pairs.append(sorted((cell for cell in cells if cell.C == C), key=lambda cell: -cell.mean))
    accuracies = [[{run.point.seed: 100 * run.accuracy for run in cell.outcomes} for cell in pair] for pair in pairs]
    judged = judge_differences([[above[seed] - below[seed] for seed in above] for above, below in accuracies])
    sentences = []
    for (first, second), found in zip(pairs, judged, strict=True):
        names, gap = (LABEL[first.algorithm], LABEL[second.algorithm]), f"{found.mean:.1f} points"
        said = {
            "ahead": f"{names[0]} is ahead of {names[1]} by {gap}",
            "even": f"{names[0]} and {names[1]} are even ({gap})",
        }.get(found.verdict, f"{names[0]} has {gap} more than {names[1]}, but these seeds do not decide")
        sentences.append(f"ExDir({first.C}, 10): {said}.")
    return [
        *sentences,
        "Each rate has the best test accuracy with seed 1234, as the paper chooses; that seed is one of the three.",
        f"A demo on small digits, {R} rounds: no evidence for other data, models or rates.",
    ]


def _build_payload(cell: Cell) -> dict[str, object]:
    return {
        "C": cell.C,
        "algorithm": cell.algorithm,
        "eta": cell.eta,
        "on_edge": cell.on_edge,
        "accuracy": cell.mean,
        "spread": cell.spread,
        "accuracies": {str(run.point.seed): run.accuracy for run in cell.outcomes},
        "bytes": cell.outcomes[0].traffic,
    }
