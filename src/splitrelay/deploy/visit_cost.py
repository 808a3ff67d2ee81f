"""What a device pays for a visit: bytes, messages and FLOPs for every algorithm and cut, beside what was measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import fsum
from pathlib import Path

import torch

from splitrelay.data import load
from splitrelay.deploy.backend_torch import model_spec_of
from splitrelay.deploy.client_usage import Bill, read
from splitrelay.engine.base import HEADER, LABEL, LOSS, NORM
from splitrelay.errors import InputError
from splitrelay.models import find_cut_index
from splitrelay.models.summary import summarize_model
from splitrelay.objectives.batches import Batches
from splitrelay.randomness import Purpose, rng
from splitrelay.runs.build import build_partition, compute_local_steps, resolve_spec
from splitrelay.runs.registry import algorithm
from splitrelay.runs.spec import Spec, load_spec

BACKWARD = 3  # forward and backward together, in forwards
ONLY_CUT = ("splitfed-v2", "splitfed-v3", "sflg")
ONE_STEP = ("minibatch-sgd", "random-reshuffling")  # in a visit, whatever K is


@dataclass(frozen=True)
class Measured:
    """What a deployed run has measured, for one visit: means over its visits, but for the memory."""

    socket_up: float | None
    socket_down: float | None
    messages: float
    computing: float  # seconds
    waiting: float
    memory: int  # bytes of the largest client program


@dataclass(frozen=True)
class Price:
    """Means over the clients of a run, for one visit; `visits` of them make a client's round."""

    algorithm: str
    placement: str
    cut: int  # layers of the client; all of them where it is whole
    after: str
    chosen: bool  # what the spec says
    parameters: int  # at the client
    visits: float
    up: float
    down: float
    messages: float
    flops: float  # of the client
    measured: Measured | None = None


def compared(spec: Spec, algorithms: Sequence[str] = (), run: Path | None = None) -> list[Price]:
    """Every cut, and the whole model, of each algorithm; the spec's own beside what a run of it has measured."""
    found: list[Price] = []
    for name in dict.fromkeys(algorithms or (spec.algorithm,)):
        rows = prices(_with(spec, name))
        found += rows if name == spec.algorithm else [replace(row, chosen=False) for row in rows]
    if run is None:
        return found
    seen = measured(spec, run)
    return [replace(row, measured=seen) if row.chosen else row for row in found]


def _with(spec: Spec, name: str) -> Spec:
    """The same spec with another algorithm; SplitFed and its kin need a cut."""
    if name == spec.algorithm:
        return spec
    given = {**spec.model_dump(), "algorithm": algorithm(name).name}
    if name in ONLY_CUT:
        given["placement"] = "cut"
    return Spec.model_validate(given)


def prices(spec: Spec) -> list[Price]:
    """Every cut of the spec's model, then the whole model."""
    data = load(spec.data.name)
    held = build_partition(spec, data).indices
    visits, steps = _steps(spec, [len(positions) for positions in held if len(positions)])
    plan = model_spec_of(spec, data.train.shape, len(data.train.classes))
    found, layout = summarize_model(plan, spec.optimiser.batch), plan.layout(getattr(torch, spec.model.dtype))
    width = torch.empty((), dtype=layout.dtype).element_size()
    chosen = find_cut_index(plan, spec.model.cut) if spec.placement == "cut" else len(layout.ends) - 1
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
        where = (cut.layers, cut.after, mine, cut.bottom_parameters)
        rows.append(Price(spec.algorithm, "cut", *where, visits, up, down, talk, flops))
    if spec.algorithm in ONLY_CUT:
        return rows
    whole = HEADER + layout.size * width
    flops = found.flops * BACKWARD * _samples(steps)
    where = (len(found.layers), "", spec.placement == "whole", found.parameters)
    return [*rows, Price(spec.algorithm, "whole", *where, visits, whole, shifted * whole, 2, flops)]


def measured(spec: Spec, run: Path) -> Measured:
    """What the clients of a deployed run have paid, by its own account."""
    accounts = read(run / "relay" / "paid.json")
    whole = sum((account.bill for account in accounts.values()), Bill())
    if not whole.visits:
        hint = "Name the --out of a splitrelay serve or rehearse whose clients have made a visit."
        raise InputError(f"nothing was measured in {run}", hint=hint)
    other = load_spec(run / "spec.toml")
    if other.hash != resolve_spec(spec)[0].hash:
        hint = f"Give its own spec: {run / 'spec.toml'}."
        raise InputError(f"{run} is a run of another spec", value=other.hash, hint=hint)
    up, down = whole.socket_bytes_up, whole.socket_bytes_down
    return Measured(
        socket_up=None if up is None else up / whole.visits,
        socket_down=None if down is None else down / whole.visits,
        messages=whole.socket_messages / whole.visits,
        computing=whole.computing_seconds / whole.visits,
        waiting=whole.waiting_seconds / whole.visits,
        memory=whole.memory_bytes,
    )


def _steps(spec: Spec, sizes: Sequence[int]) -> tuple[float, list[list[int]]]:
    """How many visits a client makes in a round, on average, and the sizes of each client's batches in one of them.

    They depend on how much it has, not on what is drawn.
    """
    batches = Batches(spec.optimiser.batch, spec.optimiser.draw)
    K = compute_local_steps(spec, [torch.arange(n).numpy() for n in sizes])
    each = [K if isinstance(K, int) else K[m] for m in range(len(sizes))]
    visits = sum(each) / len(each) if spec.algorithm == "minibatch-sgd" else 1.0
    taken = [1] * len(each) if spec.algorithm in ONE_STEP else each
    drawn = [batches.positions(sizes[m], k, rng(0, Purpose.BATCHES, m)) for m, k in enumerate(taken)]
    return visits, [[len(step) for step in positions] for positions in drawn]


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
            row.algorithm, f"{row.placement}{mark}", row.cut, row.after, row.parameters, round(row.visits, 1),
            round(row.up / 1e3, 1), round(row.down / 1e3, 1), round(row.messages, 1), round(row.flops / 1e6, 1),
        )  # fmt: skip


def measured_cells(seen: Measured | None) -> tuple[object, ...]:
    """The columns beside them."""
    if seen is None:
        return ("",) * 6
    sizes = (None if number is None else round(number / 1e3, 1) for number in (seen.socket_up, seen.socket_down))
    seconds = (round(1e3 * seen.computing, 1), round(1e3 * seen.waiting, 1))
    return (*sizes, round(seen.messages, 1), *seconds, round(seen.memory / 1e6))
