"""Estimate the time of the paper's VGG-11 cells on a GPU from FLOPs. Nothing was run on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from splitrelay.models import get_model_spec
from splitrelay.models.summary import summarize_model
from splitrelay.paper.cells import CELLS, Cell
from splitrelay.paper.studies import PAIR
from splitrelay.runs.spec import SEEDS, Spec, load_spec
from splitrelay.table import Heading, Table

IMAGE, CLASSES = (3, 32, 32), 10  # of CIFAR-10
TEST = 10_000  # images of its test set
SHARE = 0.3  # assumed share of the peak for batches of 20
LAUNCHED = 2e-3  # shortest seconds of a step: about 150 kernel launches
BACKWARD = 2  # times the forward pass


@dataclass(frozen=True)
class Accelerator:
    """A GPU with the peak performance of its data sheet."""

    name: str
    peak: float  # FLOPs a second, float32

    def seconds(self, flops: float) -> float:
        """Return the seconds of one step or one evaluation."""
        return max(flops / (SHARE * self.peak), LAUNCHED)


KINDS = (
    Accelerator("T4", 8.1e12),
    Accelerator("V100", 15.7e12),
    Accelerator("A100", 19.5e12),
    Accelerator("RTX 4090", 82.6e12),
)


def estimate_hours(spec: Spec, kind: Accelerator, forward: float) -> float:
    """Return the hours of one run of VGG-11: its steps, one after another, and its evaluations."""
    steps = spec.R * (spec.S or spec.partition.M) * spec.K
    step = kind.seconds((1 + BACKWARD) * forward * spec.optimiser.batch)
    return (steps * step + spec.R // spec.every * kind.seconds(forward * TEST)) / 3600


def build_accelerators_table() -> Table:
    """Build one row per VGG-11 cell of the paper, for both algorithms and all seeds, on each GPU."""
    forward = float(summarize_model(get_model_spec("vgg11", IMAGE, CLASSES)).flops)
    cells = [cell for cell in CELLS.values() if cell.data == "cifar10"]
    found = [[_estimate_cell(cell, kind, forward) for kind in KINDS] for cell in cells]
    names = ("C", "K", *(kind.name for kind in KINDS))
    heads = [Heading("setting"), *(Heading(name, is_numeric=True) for name in names)]
    rows = [
        [cell.setting, str(cell.C), str(cell.K), *_format_hours(times)]
        for cell, times in zip(cells, found, strict=True)
    ]
    rows.append(["all", "", "", *_format_hours([sum(column) for column in zip(*found, strict=True)])])
    caption = (
        f"Hours for VGG-11 on CIFAR-10, both algorithms, {len(SEEDS)} seeds, one after another. An estimate: "
        f"nothing was run on a GPU. FLOPs at {SHARE:.0%} of the float32 peak, at least {1e3 * LAUNCHED:g} ms a step."
    )
    records = [
        {"cell": cell.name, **{kind.name: time for kind, time in zip(KINDS, times, strict=True)}}
        for cell, times in zip(cells, found, strict=True)
    ]
    return Table(heads, rows, caption=caption, name="accelerators", records=records)


def _estimate_cell(cell: Cell, kind: Accelerator, forward: float) -> float:
    specs = [load_spec(None, [f"preset=paper/{cell.name}", f"algorithm={name}"]) for name in PAIR]
    return len(SEEDS) * sum(estimate_hours(spec, kind, forward) for spec in specs)


def _format_hours(times: Sequence[float]) -> list[str]:
    return [f"{time:.0f}" for time in times]
