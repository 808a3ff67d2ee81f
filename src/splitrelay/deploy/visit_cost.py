"""The cost of a visit for a client: bytes, messages and FLOPs for every algorithm and cut, beside measured values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import fsum
from pathlib import Path

import torch

from splitrelay.deploy.backend_torch import build_model_spec
from splitrelay.deploy.client_usage import Usage, read_usage
from splitrelay.engine.base import HEADER, LABEL, LOSS, NORM, STEPS
from splitrelay.errors import InputError
from splitrelay.models import find_cut_index
from splitrelay.models.summary import summarize_model
from splitrelay.objectives.batches import Batches
from splitrelay.randomness import Purpose, rng
from splitrelay.runs.build import build_partition, compute_local_steps, load_data, resolve_spec
from splitrelay.runs.local_steps import build_step
from splitrelay.runs.registry import algorithm
from splitrelay.runs.spec import Spec, load_spec

BACKWARD = 3  # the cost of forward and backward together, in forward passes
ONLY_CUT = ("splitfed-v2", "splitfed-v3", "sflg")
ONE_STEP = ("minibatch-sgd", "random-reshuffling")  # one step in a visit for any K


@dataclass(frozen=True)
class Measured:
    """Measured values of one visit in a deployed run: means over its visits, and the maximum of the memory."""

    socket_up: float | None
    socket_down: float | None
    messages: float
    computing: float  # seconds
    waiting: float
    memory: int  # bytes of the largest client program


@dataclass(frozen=True)
class VisitCost:
    """The cost of one visit, as a mean over the clients of a run. A client makes `visits` of them in a round."""

    algorithm: str
    placement: str
    cut: int  # layers of the client
    after: str
    chosen: bool  # whether the spec has this placement and cut
    parameters: int  # at the client
    visits: float
    up: float
    down: float
    messages: float
    flops: float  # of the client
    measured: Measured | None = None


def compare_costs(spec: Spec, algorithms: Sequence[str] = (), run: Path | None = None) -> list[VisitCost]:
    """Return the cost of every cut, and of the whole model, for each algorithm.

    Args:
        spec: The spec.
        algorithms: Names of algorithms; empty for the one of the spec.
        run: The directory of a deployed run of the spec, whose measured values are added to the row of the spec.
    """
    found: list[VisitCost] = []
    for name in dict.fromkeys(algorithms or (spec.algorithm,)):
        rows = compute_costs(_replace_algorithm(spec, name))
        found += rows if name == spec.algorithm else [replace(row, chosen=False) for row in rows]
    if run is None:
        return found
    seen = load_measured(spec, run)
    return [replace(row, measured=seen) if row.chosen else row for row in found]


def _replace_algorithm(spec: Spec, name: str) -> Spec:
    """Return the spec with another algorithm. The variants of SplitFed need a cut."""
    if name == spec.algorithm:
        return spec
    given = {**spec.model_dump(), "algorithm": algorithm(name).name}
    if name in ONLY_CUT:
        given["placement"] = "cut"
    return Spec.model_validate(given)


def compute_costs(spec: Spec) -> list[VisitCost]:
    """Return the cost of every cut of the spec's model, then of the whole model."""
    data = load_data(spec.data)
    held = build_partition(spec, data).indices
    visits, steps = _get_batch_sizes(spec, list(map(len, held)))
    train = data.train
    plan = build_model_spec(spec, train.inputs, train.outputs)
    labels = 1 if train.y.ndim == 1 else int(train.y.shape[1])
    found, layout = summarize_model(plan, spec.optimiser.batch), plan.layout(getattr(torch, spec.model.dtype))
    width = torch.empty((), dtype=layout.dtype).element_size()
    chosen = find_cut_index(plan, spec.model.cut) if spec.placement == "cut" else len(layout.ends) - 1
    step = spec.optimiser
    handed = build_step(step).rule.count_vectors(step.momentum) if step.state == "handed" else 0  # go both ways with x
    shifted = 1 + (spec.algorithm == "scaffold")  # its shift goes down with x
    rows = []
    for cut in found.cuts:
        norms = sum(slot.parameter for slot in layout.slots if slot.layer >= cut.layers)
        half, memory = HEADER + layout.ends[cut.layers] * width, STEPS if handed else 0
        norms = norms if spec.optimiser.clip is not None else 0
        traffic = [_count_step_bytes(sizes, cut.smashed * width, norms, labels) for sizes in steps]
        up = fsum(one[0] for one in traffic) / len(steps) + (1 + handed) * half + memory
        down = fsum(one[1] for one in traffic) / len(steps) + (shifted + handed) * half + memory
        talk = fsum(2 * len(sizes) + 1 for sizes in steps) / len(steps) + 2
        flops = found.flops * cut.flops_share * BACKWARD * _count_samples(steps)
        mine = spec.placement == "cut" and cut.layers == chosen
        where = (cut.layers, cut.after, mine, cut.bottom_parameters)
        rows.append(VisitCost(spec.algorithm, "cut", *where, visits, up, down, talk, flops))
    if spec.algorithm in ONLY_CUT:
        return rows
    whole = HEADER + layout.size * width
    flops = found.flops * BACKWARD * _count_samples(steps)
    where = (len(found.layers), "", spec.placement == "whole", found.parameters)
    up, down = ((times + handed) * whole + (STEPS if handed else 0) for times in (1, shifted))
    return [*rows, VisitCost(spec.algorithm, "whole", *where, visits, up, down, 2, flops)]


def load_measured(spec: Spec, run: Path) -> Measured:
    """Return the measured values of a deployed run, from its own records.

    Raises:
        InputError: The run has no measured visit, or is a run of another spec.
    """
    accounts = read_usage(run / "relay" / "paid.json")
    whole = sum((account.total for account in accounts.values()), Usage())
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


def _get_batch_sizes(spec: Spec, sizes: Sequence[int]) -> tuple[float, list[list[int]]]:
    """Return the visits of a client in a round (mean), and the sizes of each client's batches in one visit.

    The sizes depend on the number of its samples, not on random draws.
    """
    batches = Batches(spec.optimiser.batch, spec.optimiser.draw, spec.optimiser.drop_last)
    clients = [m for m, n in enumerate(sizes) if n]  # those without samples make no visit
    K = compute_local_steps(spec, [torch.arange(n).numpy() for n in sizes if n])
    if isinstance(spec.tau, tuple):
        K = [spec.tau[m] for m in clients]
    each = [K if isinstance(K, int) else K[j] for j in range(len(clients))]
    visits = sum(each) / len(each) if spec.algorithm == "minibatch-sgd" else 1.0
    taken = [1] * len(each) if spec.algorithm in ONE_STEP else each
    drawn = [
        batches.positions(sizes[m], k, rng(0, Purpose.BATCHES, j))
        for j, (m, k) in enumerate(zip(clients, taken, strict=True))
    ]
    return visits, [[len(step) for step in positions] for positions in drawn]


def _count_step_bytes(sizes: Sequence[int], smashed: int, norms: int, labels: int) -> tuple[int, int]:
    """Return the bytes up and down of the steps of one visit."""
    up = sum(HEADER + n * (smashed + labels * LABEL) + NORM for n in sizes) + HEADER + NORM
    return up, sum(HEADER + n * smashed + NORM * norms + LOSS for n in sizes)


def _count_samples(steps: Sequence[Sequence[int]]) -> float:
    return fsum(sum(sizes) for sizes in steps) / len(steps)


def format_rows(rows: Sequence[VisitCost]) -> Iterator[tuple[object, ...]]:
    """Yield the cells of a table for people; * marks the row of the spec."""
    for row in rows:
        mark = " *" if row.chosen else ""
        yield (
            row.algorithm, f"{row.placement}{mark}", row.cut, row.after, row.parameters, round(row.visits, 1),
            round(row.up / 1e3, 1), round(row.down / 1e3, 1), round(row.messages, 1), round(row.flops / 1e6, 1),
        )  # fmt: skip


def format_measured(seen: Measured | None) -> tuple[object, ...]:
    """Return the cells of the measured values."""
    if seen is None:
        return ("",) * 6
    sizes = (None if number is None else round(number / 1e3, 1) for number in (seen.socket_up, seen.socket_down))
    seconds = (round(1e3 * seen.computing, 1), round(1e3 * seen.waiting, 1))
    return (*sizes, round(seen.messages, 1), *seconds, round(seen.memory / 1e6))
