"""A spec run by a server: the loop of `splitrelay run`, with clients on other hosts and a journal of their visits."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from splitrelay.atomic_files import write_text
from splitrelay.data.images import DataSet
from splitrelay.data.partition import Partition
from splitrelay.deploy.client_records import RecordedClients
from splitrelay.deploy.fed_averaging import FedServerHandover, SealedCut, SealedParams, refuse_unfit
from splitrelay.deploy.half_disputes import SealedClients, VisitRejected
from splitrelay.deploy.journal import Journal
from splitrelay.deploy.remote_clients import RemoteClients
from splitrelay.deploy.remote_evaluator import RemoteEvaluator
from splitrelay.deploy.sealed_state import SealedState, make_first_state
from splitrelay.deploy.state_probe import Examiner, Finding, SpoiledDeposit, TestSetVisits
from splitrelay.engine.base import LOWER_ETA
from splitrelay.errors import Diverged, InputError, VisitFailed
from splitrelay.models.weights_io import save_weights
from splitrelay.network.connection_handler import EVALUATOR_NUMBER
from splitrelay.runs.client_records import ClientRecord, parse_record
from splitrelay.runs.execute import Progress
from splitrelay.runs.machine import describe_environment
from splitrelay.runs.rows import build_row
from splitrelay.runs.run_directory import RunDirectory
from splitrelay.runs.spec import Spec, load_spec
from splitrelay.runs.trainer import EvaluationRow, Trainer
from splitrelay.structured_text import parse_json

TOLD = ("samples", "digest", "software", "cpu", "arrivals", "first_arrival", "last_arrival")  # by clients that arrived


def refuse_undeployable(spec: Spec, judge: bool = False, fed: bool = False) -> None:
    """What a simulation can do and a deployment cannot, with the reason."""
    if fed:
        refuse_unfit(spec)
    if judge and spec.route == "centralized" and not fed:
        hint = "Leave --judge out, or take route=peer-to-peer."
        raise InputError("the server itself scores a centralized run", hint=hint)
    if spec.model.init and (fed or spec.route != "centralized"):
        what = "the clients draw their half of x^0 from the seed; a model to begin from would reach only the server's"
        raise InputError(what, value=f"init={spec.model.init}", hint="Take route=centralized, or no init.")
    if spec.data.validation:
        what = "a simulation scores what all clients keep as one set; deployed, it stays apart, and so would its digits"
        hint = "Take validation=0: the test set is scored. See docs/decisions, 15."
        raise InputError(what, value=f"validation={spec.data.validation:g}", limit="validation=0", hint=hint)


def sized(sizes: Mapping[int, int], M: int) -> Partition:
    """A partition that knows how much each client holds, and nothing else."""
    nothing = np.zeros(1, dtype=np.int64)  # which samples these are, the server is not told
    return Partition(tuple(np.broadcast_to(nothing, sizes.get(m, 0)) for m in range(M)), kind="told")


@dataclass(frozen=True)
class ClientSizesFile:
    """How many samples each client holds, as told when the run began or when it came later; 0 for who is left out."""

    path: Path

    def read(self) -> dict[int, int]:
        """Clients that have been here, and their n_m."""
        return {m: one.samples for m, one in self.records().items() if m < EVALUATOR_NUMBER}

    def records(self) -> dict[int, ClientRecord]:
        """Return what clients, evaluator and fed server told; a file of an earlier version has only counts."""
        if not self.path.exists():
            return {}
        try:
            content = parse_json(self.path.read_text(encoding="utf-8"))
            return {int(m): parse_record(int(m), one) for m, one in content.items()}
        except (ValueError, AttributeError, TypeError):
            hint = "Write it again: the number of each client, and its samples as in events.jsonl (arrived)."
            raise InputError(f"{self.path} is damaged", hint=hint) from None

    def write(self, sizes: Mapping[int, int], records: Mapping[int, ClientRecord] | None = None) -> None:
        """All that is known: the sizes, and with each what the client told; where that is not given, as it was."""
        known = self.records() if records is None else records
        others = {m: one for m, one in known.items() if m >= EVALUATOR_NUMBER}
        clients = {m: replace(known.get(m, ClientRecord(m)), samples=n) for m, n in sizes.items()}
        content = {m: {name: getattr(one, name) for name in TOLD} for m, one in sorted({**clients, **others}.items())}
        write_text(self.path, json.dumps(content, indent=1) + "\n", private=True)

    def refuse_others(self, without: Iterable[int]) -> None:
        """Whoever was left out when the run began stays so: with another client it would be another run."""
        before = self.absent()
        if not before <= set(without):
            words = " ".join(f"--without {m}" for m in sorted(before))
            raise InputError("other clients were left out when this run began", hint=f"Go on with {words}.")

    def absent(self) -> set[int]:
        """List the clients that were left out when the run began."""
        return {m for m, n in self.read().items() if n == 0}


class DeployedRun:
    """A run on a server, in its directory: begun, or taken up where it stopped."""

    def __init__(
        self,
        spec: Spec,
        directory: RunDirectory,
        data: DataSet,
        remote: RemoteClients,
        sizes: Mapping[int, int],
        judge: int | None = None,  # who scores, peer to peer; the spec's evaluator unless said
        back_to: int | None = None,  # the round to which the run was set back just now: its row may be lost
    ) -> None:
        self.spec, self.directory, self.journal = spec, directory, remote.journal
        self.back_to = back_to
        self.boundary = remote.server_visits.shape.boundary
        self.measured: Callable[[], dict[str, Any]] = dict  # what the clients have paid so far
        self.recorded = RecordedClients(remote)
        self.learning = Trainer(spec, data, sized(sizes, spec.partition.M), clients=self.recorded)
        who = spec.evaluator if judge is None else judge
        self.kind: type[SealedState] | None = None
        if isinstance(remote, SealedClients):
            self.kind = SealedParams if isinstance(remote, FedServerHandover) else SealedState
        self.judged = RemoteEvaluator(remote, who) if isinstance(remote, SealedClients) else None
        if self.kind is SealedParams and hasattr(self.learning.algorithm, "cut"):
            self.learning.algorithm = replace(self.learning.algorithm, cut=SealedCut())  # type: ignore[type-var]
        if self.judged:
            self.learning.evaluator = self.judged  # type: ignore[assignment]  # it scores, which is all that is asked
        self.remote = remote
        self.examiner = None if self.kind else self._make_examiner(data)

    def _make_examiner(self, data: DataSet) -> Examiner | None:
        """Make what finds deposits that later visits overflow from; it needs halves that the server can read."""
        if not len(data.test):
            return None
        visits = TestSetVisits(self.spec, data, self.remote.server_visits)
        start = (0, self._begun())
        examiner = Examiner(self.learning.algorithm, self.learning.order, self.journal, visits, start)
        self.remote.examine = examiner.examine_visit
        return examiner

    def rows(self) -> Iterator[Progress]:
        """All rows: those that are there already, then those that are still to come."""
        start = self._start()
        rows = self.directory.truncate_rows(start[0] if start else -1)
        yield from (Progress(row, is_old=True) for row in rows)
        write_text(self.directory.spec, self.spec.to_toml() + "\n")
        write_text(self.directory.path / "environment.json", json.dumps(describe_environment(), indent=2) + "\n")
        self.directory.diverged.unlink(missing_ok=True)
        while True:
            try:
                yield from self._train(start)
                return
            except SpoiledDeposit as error:
                start = self._start()
                if error.visit.r >= (start[0] if start else 0):  # else a checkpoint without fault was saved since
                    self.remote.drop_deposit(error.visit)
                self.directory.truncate_rows(start[0] if start else -1)
            except VisitRejected as error:
                start = self._start()
                if start and error.visit.r < start[0]:
                    hint = "Go back with serve --back-to ROUND; --without leaves the client out."
                    raise VisitFailed(f"{error.what}. A later checkpoint was saved", hint=hint) from None
                self.directory.truncate_rows(start[0] if start else -1)

    def _train(self, start: tuple[int, Any] | None) -> Iterator[Progress]:
        """Yield the rows after `start`, a round and its state; visits that are in the journal are not made again."""
        state = start[1] if start else self._begun()
        at = self.recorded.rounds = start[0] if start else 0
        if self.examiner:
            self.examiner.start = at, state
        if start and self.judged:
            self.judged.r, self.judged.begun = at + 1, False  # the first look is not asked again
        looks = self.learning.run(self.spec.R, self.spec.every, overlap=not self.judged, start=(at, state))
        if start:
            next(looks)  # its row is there already
        rows = self.directory.read_rows()
        before = rows[-1]["seconds"] if rows else 0.0
        for look, state in looks:
            yield self._kept(look, state, before)
        self._finish(state)

    def _kept(self, look: EvaluationRow, state: Any, before: float) -> Progress:
        """The row, then the checkpoint; then the journal need not know the visits before it."""
        finding = Finding(is_sound=True)
        if self.examiner and self.spec.optimiser.clip is None:  # clipped steps cannot overflow: this costs visits
            finding = self.examiner.examine_state(look.r, state)
        if finding.fault is not None:
            raise SpoiledDeposit(finding.fault)
        if look.r == self.spec.R:
            self.remote.check_last_round(self.spec.R)
        row = {**build_row(look, before), **self.measured(), **self.recorded.take_row(look.r)}
        self.directory.append_row(row)
        if look.r % self.spec.every == 0:
            self.directory.checkpoints.save(look.r, state, look.up, look.down)
            self.journal.forget(look.r)
            self.remote.at_fault.clear()
            if self.examiner:
                self.examiner.start = look.r, state
        return Progress(row)

    def _start(self) -> tuple[int, Any] | None:
        seen = {row["round"] for row in self.directory.read_rows()}
        found = self.directory.checkpoints.load_newest(self._begun(), at_most=self.spec.R)
        r = None if found is None else found[0].round
        if r is None or r != self.back_to:
            self.directory.check_progress(r)
        self._note_unreadable(r)
        self.learning.clients.up = self.learning.clients.down = 0
        self.learning.clients.losses = []
        if found is None or not (r in seen or r == self.back_to):
            return None
        self.learning.clients.up, self.learning.clients.down = found[0].up, found[0].down
        return found[0].round, found[1]

    def _note_unreadable(self, r: int | None) -> None:
        """Record where newer checkpoints than that of round r are there and cannot be used."""
        later = [kept for kept in self.directory.checkpoints.list_rounds() if (r or 0) < kept <= self.spec.R]
        if later:
            self.journal.note("unreadable", checkpoints=later, used=r)

    def _begun(self) -> Any:
        """The state before the first round; peer to peer without the clients' half."""
        x0 = self.learning.x0()
        x: Any = make_first_state(x0[self.boundary :].clone(), self.kind) if self.kind else x0
        return self.learning.algorithm.init(x)

    def _finish(self, state: Any) -> None:
        self.directory.write_csv()
        if self.judged:
            self.judged.hand_over(state)
            return
        layout = self.learning.model_spec.layout(self.learning.network.dtype)
        x = self.learning.algorithm.model(state)
        if not bool(x.isfinite().all()):
            raise Diverged("the final model overflowed", hint=LOWER_ETA)
        save_weights(self.directory.model, layout, x)


def begun(spec: Spec, directory: RunDirectory) -> Spec:
    """Where the engine is left open, that of the run as it was begun: another one would make other bits."""
    if spec.engine != "auto" or not directory.spec.exists():
        return spec
    return spec.model_copy(update={"engine": load_spec(directory.spec).engine})


def agree(spec: Spec, directory: RunDirectory) -> None:
    """The directory belongs to this spec, or is new. One that was simulated has nothing that clients trained."""
    if directory.spec.exists() and not directory.is_deployed:
        raise InputError(f"{directory.path} holds a simulated run", hint="Choose another --out.")
    if directory.spec.exists() and load_spec(directory.spec).hash != spec.hash:
        hint = f"Choose another --out; it was made by {directory.spec}."
        raise InputError(f"{directory.path} holds another run", value=spec.hash, hint=hint)


def journal_of(directory: RunDirectory) -> Journal:
    """The journal beside the run's record."""
    return Journal(directory.path / "relay")
