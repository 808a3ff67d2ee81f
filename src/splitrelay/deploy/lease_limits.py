"""The limits that a client sets its server: what may leave the host, and how many visits have been made.

A client takes none of this from the server. It runs one round of the spec's algorithm on plain numbers to find the
step, K and the number of visits of a round, refuses every lease that differs, and counts what it sends.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from splitrelay.algorithms.base import AlgorithmSettings, Done, Outcome, Step, Visit
from splitrelay.algorithms.schedules import Schedule
from splitrelay.atomic_files import write_text
from splitrelay.deploy.backend import Shape
from splitrelay.errors import InputError, SplitrelayError, escape_unprintable
from splitrelay.network.messages import EvaluationRequest, Lease, Terms
from splitrelay.runs.local_steps import build_schedule, build_settings, build_step, count_local_steps
from splitrelay.runs.registry import algorithm
from splitrelay.runs.spec import Spec
from splitrelay.structured_text import parse_json

CONSTANT = Schedule()
SPARE = 20  # visits, and evaluations, that may be repeated after failures, beside the repeats of a whole run

FEW = 101  # local steps of the round from which the visits of a spec are derived, at most


class ServerBrokeSpec(InputError):
    """The server asks for something that the client's own copy of the spec does not allow."""


@dataclass(frozen=True)
class AllowedVisits:
    """The visits of client m that a spec allows."""

    m: int
    R: int
    occurrences: int  # visits of this client in one round, at most
    K: int  # local steps of a visit; the largest possible number where it depends on how much all clients hold
    has_fixed_K: bool
    step: Step[Any]
    evaluations: int  # of the evaluator
    checks: int  # halves of others that a client may be asked to open, at most
    has_shift: bool = False  # the server sends a shift of the gradients with x
    most: int | None = None  # visits of the run where clients are drawn with replacement, see below
    schedule: Schedule = CONSTANT  # the learning rate of each round

    @property
    def visits(self) -> int:
        """The largest number of visits of the run."""
        all_rounds = self.R * self.occurrences
        return all_rounds if self.most is None else min(self.most, all_rounds)

    def get_step(self, r: int) -> Step[Any]:
        """Return the step of round r."""
        return self.step if self.schedule.is_constant else self.schedule.scale(self.step, r)

    def check_lease(self, lease: Lease, largest_half: int) -> None:
        """Raise ServerBrokeSpec unless the lease is a visit of this spec."""
        step = self.get_step(lease.r)
        for what, value, allowed in (
            ("client", lease.m, self.m),
            ("eta", lease.eta, step.eta),
            ("weight_decay", lease.weight_decay, step.weight_decay),
            ("clip", lease.clip, step.clip or 0.0),
            ("momentum", lease.momentum, step.momentum),
            ("prox", lease.prox, step.prox),
            ("per_half", lease.per_half, step.per_half),
        ):
            if value != allowed:
                raise _refuse(f"a visit with {what}={value}", value, f"{what}={allowed}")
        if lease.K != self.K and (self.has_fixed_K or not 1 <= lease.K <= self.K):
            limit = f"K={self.K}" if self.has_fixed_K else f"1 <= K <= {self.K}"
            raise _refuse("a visit of another number of local steps", lease.K, limit)
        if lease.r >= self.R:
            raise _refuse("a visit after the last round", lease.r, f"rounds 0 to {self.R - 1}")
        if self.occurrences == 0:
            raise _refuse("a visit of a party that does not train", lease.m, "evaluations only")
        if lease.i >= self.occurrences:
            raise _refuse("too many visits in one round", lease.i, f"occurrences 0 to {self.occurrences - 1}")
        check_half_bytes(lease.bytes, largest_half)

    def make_visit(self, lease: Lease, x: Any, shift: Any) -> Visit[Any]:
        """Return the visit to make. Only its place in the run comes from the server; the step is the spec's own."""
        return Visit(lease.r, lease.i, self.m, x, replace(self.get_step(lease.r), shift=shift), lease.K)


def check_evaluation(allowed: AllowedVisits, request: EvaluationRequest, largest: int) -> None:
    """Raise ServerBrokeSpec unless the evaluation belongs to a round of this spec and its halves are not too long."""
    if request.r > allowed.R + 1:  # the last one hands over the model
        raise _refuse("an evaluation after the last round", request.r, f"evaluations 0 to {allowed.R + 1}")
    check_half_bytes(max(request.bytes, request.top_bytes), largest)


def check_half_bytes(length: int, largest: int) -> None:
    """Raise ServerBrokeSpec for a half that is longer than any half of this spec."""
    if length > largest:
        raise _refuse("this client to receive a half that is too long", f"{length} bytes", f"<= {largest} bytes")


def _refuse(what: str, value: object, limit: object) -> ServerBrokeSpec:
    hint = "Nothing was sent. Ask the operator of the server; do not join it again before this is explained."
    return ServerBrokeSpec(f"the server asks for {what}", value=value, limit=f"{limit}, by the spec", hint=hint)


def derive_allowed_visits(spec: Spec, m: int, n: int = 1) -> AllowedVisits:
    """Derive from a spec which visits its server may ask of client m, which has n samples.

    With tau=proportional, K depends on how much every client holds. A client knows only its own share of the data, so
    every K up to K times M is possible; the first lease decides (see UsedVisits). A list tau has the K of each client.
    """
    step = build_step(spec.optimiser)
    if spec.placement == "cut":
        step = replace(step, eta_server=None)  # a client of a cut model does not train the server half
    fixed, M = spec.tau != "proportional", spec.partition.M
    K = count_local_steps(spec, n) if fixed else spec.largest_K
    if isinstance(spec.tau, tuple):
        K = spec.tau[m] if m < M else spec.largest_K
    sizes = {m: 1} if spec.weighted else None
    # A round of few local steps is enough. K comes from the server: where each step is a visit, a round of all of them
    # could take any amount of memory before anybody has agreed to the spec.
    spec_of_one = spec.model_copy(update={"G": 1})  # groups change who trains together, not the visits of one client
    settings = build_settings(spec_of_one, step, min(K, FEW), M, _NoCut(), sizes)
    visits, step, has_shift = _record_round(spec.algorithm, settings, m)
    each = len(visits)
    if K > FEW and each == FEW:  # a visit for each local step
        each, steps = K, 1
    else:
        steps = K if min(K, FEW) == visits[0].K else visits[0].K
    known = {"permutation": 1, "sampled": 1, "fixed": 1, "consumed": 2}
    draws = known.get(spec.order, spec.S or M)  # of one client in one round, at most
    occurrences = draws * each if m < M else 0  # only the clients train
    evaluations = spec.R // spec.every + 2
    checks = spec.R * max(M, spec.S or M) * each  # one for each visit of the run
    most = None
    if spec.order == "replacement":
        most = each * count_draws(spec.R * (spec.S or M), M)
    return AllowedVisits(
        m, spec.R, occurrences, steps, fixed or steps == 1, step, evaluations, checks, has_shift, most,
        build_schedule(spec.optimiser),
    )  # fmt: skip


def _record_round(name: str, settings: AlgorithmSettings, m: int) -> tuple[list[Visit[Any]], Step[Any], bool]:
    """Return the visits of client m in a round, their step, and whether it has a shift."""
    made = algorithm(name).make(settings)
    recorder = _Recorder()
    made.round(0, made.init(0.0), [m], recorder)
    steps = {replace(visit.step, shift=None) for visit in recorder.visits}
    if len(steps) != 1:
        hint = "All visits of a deployed algorithm must have the same step."
        raise InputError(f"the visits of algorithm {name} cannot be derived", value=f"{len(steps)} steps", hint=hint)
    (step,) = steps
    return recorder.visits, step, any(visit.step.shift is not None for visit in recorder.visits)


def count_draws(draws: int, M: int) -> int:
    """Return how often one of M clients is drawn in so many draws, at most: the mean and six standard deviations.

    One client in a round may be drawn every time, but not in all rounds. Where some of the M clients hold no data, the
    others are drawn more often: the repeats of a run allow for twice as often, and --repeats for more.
    """
    mean = draws / M
    return math.ceil(mean + 6.0 * math.sqrt(mean))


@dataclass
class _Recorder:
    """Clients that note the visits they are asked for and return x unchanged."""

    visits: list[Visit[Any]] = field(default_factory=list)

    def run(self, visit: Visit[Any], /) -> Outcome[Any]:
        self.visits.append(visit)
        return Done(visit.x)

    def run_all(self, visits: Iterable[Visit[Any]], /) -> Iterator[Outcome[Any]]:
        return iter([self.run(visit) for visit in visits])


class _NoCut:
    """A cut of a plain number: both halves are the number."""

    def halves(self, x: Any, /) -> tuple[Any, Any]:
        return x, x

    def join(self, bottom: Any, top: Any, /) -> Any:
        return bottom


@dataclass
class Counts:
    """What a client has sent for one spec."""

    visits: int = 0
    steps: int = 0
    evaluations: int = 0
    K: int = 0  # of the first lease
    checks: int = 0  # halves of others that were opened because somebody else could not
    ended: int = 0  # 1 after the newest visit of the last round was or may have been committed


class UsedVisits:
    """Counts the visits, steps and evaluations of one client and spec, over restarts where there is a file for it.

    A visit that fails is made again, and a server can be set back to an earlier round. The client therefore allows
    `repeats` times the whole run and SPARE visits more than the spec has, and nothing after that.

    Args:
        allowed: what the spec has.
        file: where the counts are kept; None keeps them in memory.
        repeats: how often the whole run may be repeated.
        counts: what this program has counted for the same spec before; None reads the file.
    """

    def __init__(
        self,
        allowed: AllowedVisits,
        file: Path | None,
        repeats: int,
        counts: Counts | None = None,
    ) -> None:
        self.allowed, self.file, self.repeats = allowed, file, repeats
        self.counts = _read_counts(file) if counts is None else counts

    def begin_visit(self, lease: Lease) -> None:
        """Count one visit more, or raise ServerBrokeSpec where all of them are used."""
        self._read_others()
        self._check("visits", self.counts.visits, self.allowed.visits)
        if not self.allowed.has_fixed_K and self.counts.K not in (0, lease.K):
            raise _refuse("a visit of another number of local steps than before", lease.K, f"K={self.counts.K}")
        self.counts.visits, self.counts.K = self.counts.visits + 1, lease.K
        if lease.r == self.allowed.R - 1:
            self.counts.ended = 0
        self._save()

    def count_steps(self, steps: int) -> None:
        """Count the steps of a visit that were sent."""
        self.counts.steps += steps

    def begin_evaluation(self) -> None:
        """Count one evaluation more, or raise ServerBrokeSpec where all of them are used."""
        self._read_others()
        self._check("evaluations", self.counts.evaluations, self.allowed.evaluations)
        self.counts.evaluations += 1
        self._save()

    def record_commit(self, r: int) -> None:
        """Record a visit of round r that was or may have been committed; the last round is kept over restarts.

        If it was not committed, the server asks for it again, and `begin_visit` takes this back.
        """
        if r == self.allowed.R - 1 and not self.counts.ended:
            self.counts.ended = 1
            self._save()

    def is_complete(self, spec: Spec) -> bool:
        """Whether the run can be over for this client, after this program or an earlier one.

        A client that is drawn in some rounds only cannot know which of its visits is the last, or whether it has any.
        """
        if spec.order in ("permutation", "fixed") and spec.S in (None, spec.partition.M):
            return self.counts.ended > 0
        return True

    def begin_check(self) -> None:
        """Count one half more that was opened for a check, or raise ServerBrokeSpec where all of them are used."""
        self._read_others()
        self._check("checks of halves", self.counts.checks, self.allowed.checks)
        self.counts.checks += 1
        self._save()

    def _read_others(self) -> None:
        """Take over what another program with the same keys has counted meanwhile."""
        for name, number in vars(_read_counts(self.file)).items():
            setattr(self.counts, name, max(number, getattr(self.counts, name)))

    def _check(self, what: str, used: int, planned: int) -> None:
        limit = (1 + self.repeats) * planned + SPARE
        if used >= limit:
            more = f"join with --repeats {self.repeats + 1}"
            hint = f"The spec has {planned}. If the server was set back on purpose, {more}."
            where = "" if self.file is None else f" (counted in {self.file})"
            raise ServerBrokeSpec(
                f"the server asks for more {what} than this client allows{where}",
                value=used + 1, limit=f"<= {limit}", hint=hint,
            )  # fmt: skip

    def _save(self) -> None:
        if self.file is None:
            return
        try:
            write_text(self.file, json.dumps(vars(self.counts)) + "\n")
        except SplitrelayError as error:
            hint = "Name a folder that this client may write to: --state FOLDER."
            raise InputError("this client cannot count its visits", value=error.what, hint=hint) from None


def _read_counts(file: Path | None) -> Counts:
    if file is None or not file.exists():
        return Counts()
    try:
        return Counts(**{name: int(number) for name, number in parse_json(file.read_text(encoding="ascii")).items()})
    except (OSError, ValueError, TypeError, AttributeError):
        hint = "It counts what this client has sent in the run. Remove it to count from zero."
        raise InputError(f"cannot read {file}", hint=hint) from None


Ask = Callable[[str], bool]
LABEL = 4  # bytes of one label
UPDATES = "beware: a malicious server can compute images of this client from the changes of the weights"
WIDTH, LINES = 200, 200  # characters of a line, and lines of the spec, that an operator is shown
COLUMNS = 100  # names of columns that an operator is shown


@dataclass(frozen=True)
class Disclosure:
    """What one visit sends from a client's host, and how many visits there are at most."""

    samples: int  # of one visit; 0 where the client holds the whole model
    numbers: int  # of one sample, above the client's half
    smashed_bytes: int  # of one visit, labels included
    half_bytes: int  # of the client's half, or of the whole model
    visits: int
    columns: tuple[str, ...] = ()  # of a table, from which the samples are made; names from the server

    @property
    def total_bytes(self) -> int:
        """The bytes of all visits."""
        return self.visits * (self.smashed_bytes + self.half_bytes)

    def describe(self) -> list[str]:
        """Return the lines that an operator reads before joining."""
        if self.samples:
            each = f"{self.samples:,} samples as {self.numbers:,} numbers each, with their labels"
            sent = (
                f"{each} ({_size(self.smashed_bytes)}), and this client's half of the model ({_size(self.half_bytes)})"
            )
        else:
            sent = f"the trained model ({_size(self.half_bytes)}), no samples and no labels"
        total = f"in total: at most {self.visits:,} visits, {_size(self.total_bytes)}"
        columns = [f"columns of the table: {', '.join(self.columns[:COLUMNS])}"] if self.columns else []
        columns += [f"and {len(self.columns) - COLUMNS} more columns"] * (len(self.columns) > COLUMNS)
        return [f"per visit: {sent}", total, *map(escape_unprintable, columns), *([] if self.samples else [UPDATES])]


def compute_disclosure(
    spec: Spec, shape: Shape, allowed: AllowedVisits, n: int, columns: tuple[str, ...] = ()
) -> Disclosure:
    """Compute what a client with n samples, made from these columns of a table, sends in a run of this spec."""
    width = np.dtype(spec.model.dtype).itemsize
    if spec.placement == "whole":
        return Disclosure(0, 0, 0, width * shape.size, allowed.visits, columns)
    samples = allowed.K * (n if spec.optimiser.draw == "full" else min(spec.optimiser.batch, n))
    numbers = prod(shape.h)
    smashed = samples * (numbers * width + LABEL)
    return Disclosure(samples, numbers, smashed, width * shape.boundary, allowed.visits, columns)


def check_client_half(spec: Spec, shape: Shape, agreed: Spec | None) -> None:
    """Raise InputError for a client half without parameters, unless the client's own spec names that cut.

    Below such a cut the smashed data are the features themselves, or the features reordered.
    """
    if spec.placement == "cut" and shape.boundary == 0 and (agreed is None or agreed.model.cut is None):
        hint = "To send the features themselves, join with --spec and write the cut into your own copy of the spec."
        value = f"model={spec.model.name}, cut after {shape.cut} layers"
        raise InputError("the client half of this run has no parameters", value=value, hint=hint)


class Approval:
    """Asks the operator once for each digest; threads of several clients share the answer."""

    def __init__(self, ask: Ask | None = None) -> None:
        self.ask = ask
        self._lock, self._approved = threading.Lock(), set[str]()

    def obtain(self, spec: Spec, terms: Terms, disclosure: Disclosure) -> None:
        """Return if the operator has agreed to these terms, else raise InputError.

        The spec is shown as this host has parsed it: the server's own text could hide or forge lines.
        """
        with self._lock:
            if terms.spec_hash in self._approved:
                return
            shown = [
                "The server offers this spec:",
                *_indent(shorten_lines(spec.to_toml())),
                "This host would send",
            ]
            shown += [*_indent(disclosure.describe()), f"Digest of the terms: {terms.spec_hash}"]
            if self.ask is None or not self.ask("\n".join(shown)):
                hint = f"Join with --spec and your own copy of the spec, or with --accept-spec {terms.spec_hash}."
                raise InputError("nobody has agreed to the server's spec", value=disclosure.describe()[0], hint=hint)
            self._approved.add(terms.spec_hash)


def shorten_lines(text: str) -> list[str]:
    """Return the lines of a text that comes from a server: printable, and neither too long nor too many."""
    lines = [escape_unprintable(line[:WIDTH]) for line in text.splitlines()[:LINES]]
    lines = [line if len(line) <= WIDTH else f"{line[: WIDTH - 3]}..." for line in lines]
    return lines if len(text.splitlines()) <= LINES else [*lines, f"... ({len(text.splitlines())} lines)"]


def _indent(lines: list[str]) -> list[str]:
    return [f"  {line}" if line else "" for line in lines]


def _size(number: int) -> str:
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number >= scale:
            return f"{number / scale:.1f} {unit}"
    return f"{number} bytes"
