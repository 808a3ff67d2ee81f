"""What a device pays: bytes, messages and FLOPs of a visit for every cut, and for the whole model at the client."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import fsum

import torch

from splitrelay.clients.traffic import HEADER, LABEL, LOSS, NORM
from splitrelay.data import load
from splitrelay.deploy.reference import blueprint_of
from splitrelay.experiments.assembly import local_steps
from splitrelay.experiments.running import partition_of, trial_of
from splitrelay.experiments.spec import Spec
from splitrelay.models import cut_index
from splitrelay.models.summary import summarise
from splitrelay.objectives.batches import Batches
from splitrelay.randomness import Purpose, rng

BACKWARD = 3  # forward and backward together, in forwards


@dataclass(frozen=True)
class Price:
    """Means over the clients of a run, for one visit; a round is S of them."""

    placement: str
    cut: int  # layers of the client; all of them where it is whole
    after: str
    chosen: bool  # what the spec says
    parameters: int  # at the client
    up: float
    down: float
    messages: float
    flops: float  # of the client


def prices(spec: Spec) -> list[Price]:
    """Every cut of the spec's model, then the whole model."""
    data = load(spec.data.name)
    held = partition_of(spec, data).indices
    steps = _steps(spec, [len(positions) for positions in held if len(positions)])
    plan = blueprint_of(spec, data.train.shape, len(data.train.classes))
    found, layout = summarise(plan, spec.optimiser.batch), plan.layout(getattr(torch, spec.model.dtype))
    width = torch.empty((), dtype=layout.dtype).element_size()
    chosen = cut_index(plan, spec.model.cut) if spec.placement == "cut" else len(layout.ends) - 1
    shifted = 1 + (spec.algorithm == "scaffold")  # its shift goes down with x
    rows = []
    for cut in found.cuts:
        norms = sum(slot.parameter for slot in layout.slots if slot.layer >= cut.layers)
        half = HEADER + layout.ends[cut.layers] * width
        norms = norms if spec.optimiser.clip is not None else 0
        traffic = [_visit(sizes, cut.smashed * width, norms) for sizes in steps]
        up = fsum(one[0] for one in traffic) / len(steps) + half
        down = fsum(one[1] for one in traffic) / len(steps) + shifted * half
        talk = fsum(2 * len(sizes) + 1 for sizes in steps) / len(steps) + 2
        flops = found.flops * cut.flops_share * BACKWARD * _samples(steps)
        mine = spec.placement == "cut" and cut.layers == chosen
        rows.append(Price("cut", cut.layers, cut.after, mine, cut.bottom_parameters, up, down, talk, flops))
    whole = HEADER + layout.size * width
    flops = found.flops * BACKWARD * _samples(steps)
    mine = spec.placement == "whole"
    last = Price("whole", len(found.layers), "", mine, found.parameters, whole, shifted * whole, 2, flops)
    return [*rows, last]


def _steps(spec: Spec, sizes: Sequence[int]) -> list[list[int]]:
    """The sizes of each client's batches in a visit: they depend on how much it has, not on what is drawn."""
    trial = trial_of(spec)
    batches = Batches(spec.optimiser.batch, spec.optimiser.draw)
    K = local_steps(trial, [torch.arange(n).numpy() for n in sizes])
    return [
        [len(step) for step in batches.positions(n, K if isinstance(K, int) else K[m], rng(0, Purpose.BATCHES, m))]
        for m, n in enumerate(sizes)
    ]


def _visit(sizes: Sequence[int], smashed: int, norms: int) -> tuple[int, int]:
    """Bytes up and down of the steps of one visit."""
    up = sum(HEADER + n * (smashed + LABEL) + NORM for n in sizes) + HEADER + NORM
    return up, sum(HEADER + n * smashed + NORM * norms + LOSS for n in sizes)


def _samples(steps: Sequence[Sequence[int]]) -> float:
    return fsum(sum(sizes) for sizes in steps) / len(steps)


def table(rows: Sequence[Price]) -> Iterator[tuple[object, ...]]:
    """As people read it; * marks the spec's own."""
    for row in rows:
        mark = " *" if row.chosen else ""
        yield (
            f"{row.placement}{mark}", row.cut, row.after, row.parameters, round(row.up / 1e3, 1),
            round(row.down / 1e3, 1), round(row.messages, 1), round(row.flops / 1e6, 1),
        )  # fmt: skip
