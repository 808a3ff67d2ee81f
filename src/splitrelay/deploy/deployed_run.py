"""A run with clients on other hosts: the loop of `splitrelay run`, with a journal of the visits.

A run can also be set back to a checkpoint, or started again. Nothing is deleted: results that no longer count move to
OUT/set-aside/.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from splitrelay.algorithms.base import Visit
from splitrelay.atomic_files import write_text
from splitrelay.data.images import DataSet
from splitrelay.data.partition import Partition
from splitrelay.deploy.client_records import SALT, RecordedClients
from splitrelay.deploy.fed_averaging import FedServerHandover, SealedCut, SealedParams, check_fed_spec
from splitrelay.deploy.half_disputes import PENDING, VisitRejected
from splitrelay.deploy.journal import Journal
from splitrelay.deploy.remote_clients import RemoteClients
from splitrelay.deploy.remote_evaluator import RemoteEvaluator
from splitrelay.deploy.sealed_state import SealedState, make_first_state
from splitrelay.deploy.state_probe import Examiner, Finding, SpoiledDeposit, TestSetVisits
from splitrelay.engine.base import LOWER_ETA
from splitrelay.errors import Diverged, InputError, VisitFailed
from splitrelay.models.weights_io import save_weights
from splitrelay.network.server_connection import EVALUATOR_NUMBER
from splitrelay.participation import Order
from splitrelay.runs.build import build_order
from splitrelay.runs.client_records import ClientRecord, parse_record
from splitrelay.runs.execute import Progress, RunHooks, train_in_directory
from splitrelay.runs.run_directory import RunDirectory
from splitrelay.runs.spec import Spec, load_spec
from splitrelay.runs.trainer import Trainer
from splitrelay.structured_text import parse_json

CHECK = "check"  # key of the digest in relay/clients.json
REPORTED = (
    "samples",
    "digest",
    "software",
    "cpu",
    "arrivals",
    "first_arrival",
    "last_arrival",
)  # reported by clients at their arrival


def check_deployable(spec: Spec, judge: bool = False, fed: bool = False) -> None:
    """Raise InputError for a spec that can be simulated but not deployed."""
    if fed:
        check_fed_spec(spec)
    if judge and spec.route == "centralized" and not fed:
        hint = "Leave --judge out, or take route=peer-to-peer."
        raise InputError("the server itself scores a centralized run", hint=hint)
    if spec.model.init and (fed or spec.route != "centralized"):
        what = "the clients draw their half of x^0 from the seed; a model to begin from would reach only the server's"
        raise InputError(what, value=f"init={spec.model.init}", hint="Take route=centralized, or no init.")
    if spec.threads != 1:
        what = "deployed, torch computes with one thread: bits depend on the number"
        raise InputError(what, value=f"threads={spec.threads}", limit="threads=1", hint="Remove threads.")
    if spec.optimiser.state != "reset":
        what = "deployed, every visit starts with a new optimiser: its state does not travel"
        raise InputError(what, value=f"state={spec.optimiser.state}", limit="state=reset", hint="Remove state.")
    if spec.gradient_norm:
        what = "deployed, training samples stay at the clients, so the gradient of F cannot be computed"
        raise InputError(what, value="gradient_norm=true", limit="gradient_norm=false", hint="Remove gradient_norm.")
    if spec.data.validation:
        what = "deployed, validation samples stay at the clients, so no validation loss can equal the simulated one"
        hint = "Use validation=0: the test set is evaluated. See docs/decisions, 15."
        raise InputError(what, value=f"validation={spec.data.validation:g}", limit="validation=0", hint=hint)


def build_size_partition(sizes: Mapping[int, int], M: int) -> Partition:
    """Return a partition with the number of samples of each client, but not the samples."""
    nothing = np.zeros(1, dtype=np.int64)
    return Partition(tuple(np.broadcast_to(nothing, sizes.get(m, 0)) for m in range(M)), kind="told")


@dataclass(frozen=True)
class ClientSizesFile:
    """The file with the number of samples of each client; 0 for a client that was left out at the start.

    Its key `check` is a digest of the rest and of the salt of the run. It detects a file of another run, with which the
    server would refuse the data of honest clients. A file without this key is accepted: it is of an earlier version, or
    was written by hand.
    """

    path: Path

    def read(self) -> dict[int, int]:
        """Return n_m of all clients that have connected."""
        return {m: one.samples for m, one in self.read_records().items() if m < EVALUATOR_NUMBER}

    def read_records(self) -> dict[int, ClientRecord]:
        """Return the reports of clients, evaluator and fed server. A file of an earlier version has only counts."""
        if not self.path.exists():
            return {}
        try:
            content = parse_json(self.path.read_text(encoding="utf-8"))
            check = content.pop(CHECK, None)
            if check is not None and check != self._compute_check(content):
                hint = (
                    f"Bring back the files of this run. If you changed {self.path.name} on purpose, remove {CHECK!r}."
                )
                raise InputError(f"{self.path} and {self.path.with_name(SALT)} are not of one run", hint=hint)
            return {int(m): parse_record(int(m), one) for m, one in content.items()}
        except (ValueError, AttributeError, TypeError):
            hint = "Write it again: the number of each client, and its samples as in events.jsonl (arrived)."
            raise InputError(f"{self.path} is damaged", hint=hint) from None

    def write(self, sizes: Mapping[int, int], records: Mapping[int, ClientRecord] | None = None) -> None:
        """Write sizes and reports. Without `records`, keep the reports of the file."""
        known = self.read_records() if records is None else records
        others = {m: one for m, one in known.items() if m >= EVALUATOR_NUMBER}
        clients = {m: replace(known.get(m, ClientRecord(m)), samples=n) for m, n in sizes.items()}
        content: dict[str, Any] = {
            str(m): {name: getattr(one, name) for name in REPORTED} for m, one in sorted({**clients, **others}.items())
        }
        content = {**content, CHECK: self._compute_check(content)}
        write_text(self.path, json.dumps(content, indent=1) + "\n", private=True)

    def _compute_check(self, content: Mapping[str, Any]) -> str:
        """Return the digest of the content and of the salt next to the file."""
        try:
            salt = self.path.with_name(SALT).read_bytes()
        except OSError:
            salt = b""  # a lost salt has its own error
        text = json.dumps(content, sort_keys=True).encode()
        return hashlib.sha256(b"splitrelay clients 1\0" + salt + text).hexdigest()

    def check_absent(self, without: Iterable[int]) -> None:
        """Raise InputError unless the clients that were left out at the start are left out again."""
        before = self.list_absent()
        if not before <= set(without):
            words = " ".join(f"--without {m}" for m in sorted(before))
            raise InputError("other clients were left out when this run began", hint=f"Go on with {words}.")

    def list_absent(self) -> set[int]:
        """Return the clients that were left out at the start of the run."""
        return {m for m, n in self.read().items() if n == 0}


class BuildClients(Protocol):
    """Builds the clients of a run."""

    def __call__(self, order: Order, examine: Callable[[Visit[Any]], Finding]) -> RemoteClients:
        """Return clients that come in this order; `examine` finds the deposit that makes a visit overflow."""
        ...


class DeployedRun:
    """A run with clients on other hosts, in its directory: new, or continued where it stopped."""

    def __init__(
        self,
        spec: Spec,
        directory: RunDirectory,
        data: DataSet,
        build_clients: BuildClients,
        sizes: Mapping[int, int],
        *,
        evaluator: int,
        get_usage: Callable[[], dict[str, Any]] = dict,
        back_to: int | None = None,
        salt: bytes = b"",
    ) -> None:
        """Build the clients and the trainer.

        Args:
            spec: The resolved spec.
            directory: The directory of the run.
            data: The data set. The server uses its test images only.
            build_clients: Builds the clients.
            sizes: The number of samples of each client.
            evaluator: The party that evaluates the model if the server cannot read it.
            get_usage: Returns what the clients have spent so far, for the rows.
            back_to: The round to which the run was set back just now: its row may be missing.
            salt: The random bytes of this run, to which its checkpoints are bound.
        """
        self.spec, self.directory, self.get_usage, self.back_to = spec, directory, get_usage, back_to
        self.name = name_run(spec, salt)
        partition = build_size_partition(sizes, spec.partition.M)
        self.examiner: Examiner | None = None
        self.wrong_visit: SpoiledDeposit | VisitRejected | None = None  # the reason of a restart
        self.clients = clients = build_clients(build_order(spec, partition), self._examine_visit)
        self.journal, self.boundary = clients.journal, clients.server_visits.shape.boundary
        self.recorded = RecordedClients(clients)
        disputes = clients.disputes
        self.is_sealed = disputes is not None
        self.evaluator = None if disputes is None else RemoteEvaluator(clients, disputes, evaluator)
        is_averaged = isinstance(clients.handover, FedServerHandover)
        self.kind = SealedParams if is_averaged else SealedState
        self.trainer = Trainer(
            spec,
            data,
            partition,
            clients=self.recorded,
            device=clients.server_visits.device,
            evaluator=self.evaluator,
            cut=SealedCut() if is_averaged else None,
        )
        if not self.is_sealed and len(data.test):
            visits = TestSetVisits(spec, data, clients.server_visits)
            start = (0, self._make_state())
            self.examiner = Examiner(self.trainer.algorithm, self.trainer.order, self.journal, visits, start)

    def _examine_visit(self, visit: Visit[Any]) -> Finding:
        """Find the deposit that makes a visit overflow. The server must be able to read the halves for this."""
        return Finding(is_sound=True) if self.examiner is None else self.examiner.examine_visit(visit)

    def rows(self) -> Iterator[Progress]:
        """Train, and yield all rows: those on the disk, then the new ones.

        If a committed visit turns out to be wrong, continue from the newest checkpoint without it. Visits that are in
        the journal are not made again.
        """
        hooks = RunHooks(
            make_state=self._make_state,
            back_to=self.back_to,
            on_start=self._start,
            check=self._check_state,
            get_fields=lambda r: {**self.get_usage(), **self.recorded.take_row(r)},
            on_checkpoint=self._handle_checkpoint,
            save_model=self._save_model,
            has_initial_checkpoint=True,
            run=self.name,
            overlap=self.evaluator is None,
        )
        is_restart = False
        while True:
            try:
                for progress in train_in_directory(self.spec, self.directory, self.trainer, hooks=hooks):
                    if not (is_restart and progress.is_old):
                        yield progress
                return
            except (SpoiledDeposit, VisitRejected) as error:
                self.wrong_visit, is_restart = error, True

    def _start(self, start: tuple[int, Any] | None) -> None:
        """Prepare to continue from (r, state), or from round 0.

        Raises:
            VisitFailed: The newest checkpoint contains a visit that was rejected.
            Diverged: A deposit was dropped too often.
        """
        r, state = start or (0, self._make_state())
        later = [kept for kept in self.directory.checkpoints.list_rounds() if r < kept <= self.spec.R]
        if later:
            self.journal.note("unreadable", checkpoints=later, used=start[0] if start else None)
        error, self.wrong_visit = self.wrong_visit, None
        if isinstance(error, VisitRejected) and error.visit.r < r:
            hint = "Go back with serve --back-to ROUND; --without leaves the client out."
            raise VisitFailed(f"{error.what}. A later checkpoint was saved", hint=hint)
        if isinstance(error, SpoiledDeposit) and error.visit.r >= r:  # else a sound checkpoint was saved since
            self.clients.scheduler.drop_deposit(error.visit)
        if start is None:
            self.trainer.clients.up = self.trainer.clients.down = 0
        self.trainer.clients.losses = []
        self.recorded.rounds = r
        if self.examiner:
            self.examiner.start = r, state
        if start and self.evaluator:
            self.evaluator.skip_next(r)  # the row of this round is on the disk

    def _check_state(self, r: int, state: Any) -> None:
        """Raise SpoiledDeposit or Diverged if the state of round r must not become a checkpoint."""
        if self.examiner and self.spec.optimiser.clip is None:  # clipped steps cannot overflow, and probes cost visits
            finding = self.examiner.examine_state(r, state)
            if finding.fault is not None:
                raise SpoiledDeposit(finding.fault)
        if r == self.spec.R:
            self.clients.scheduler.check_last_round(self.spec.R)

    def _handle_checkpoint(self, r: int, state: Any) -> None:
        """Remove the visits before the checkpoint from the journal."""
        self.journal.remove_rounds(r)
        self.clients.scheduler.at_fault.clear()
        if self.examiner:
            self.examiner.start = r, state

    def _make_state(self) -> Any:
        """Return the state before the first round. If the client half is sealed, it is without that half."""
        x0 = self.trainer.x0().cpu()  # between two visits x is on the host, whatever the device is
        x: Any = make_first_state(x0[self.boundary :].clone(), self.kind) if self.is_sealed else x0
        return self.trainer.algorithm.init(x)

    def _save_model(self, state: Any) -> None:
        """Write the final model, or let the evaluator write it if the server has only a half."""
        if self.evaluator:
            self.evaluator.hand_over(state)
            return
        x = self.trainer.algorithm.model(state)
        if not bool(x.isfinite().all()):
            raise Diverged("the final model overflowed", hint=LOWER_ETA)
        save_weights(self.directory.model, self.trainer.model_spec.layout(self.trainer.network.dtype), x)


def name_run(spec: Spec, salt: bytes) -> str:
    """Return the name of a deployed run in its checkpoints. Two runs of one spec have different salts."""
    return hashlib.sha256(b"splitrelay run 1\0" + salt + spec.identity.encode()).hexdigest()


def keep_engine(spec: Spec, directory: RunDirectory) -> Spec:
    """Return the spec with the engine of the run in the directory, if it leaves the engine open.

    Another engine would give other bits.
    """
    if spec.engine != "auto" or not directory.spec.exists():
        return spec
    return spec.model_copy(update={"engine": load_spec(directory.spec).engine})


def check_same_run(spec: Spec, directory: RunDirectory) -> None:
    """Raise InputError unless the directory is new or has a deployed run of this spec."""
    if directory.spec.exists() and not directory.is_deployed:
        raise InputError(f"{directory.path} holds a simulated run", hint="Choose another --out.")
    if directory.spec.exists() and load_spec(directory.spec).hash != spec.hash:
        hint = f"Choose another --out; it was made by {directory.spec}."
        raise InputError(f"{directory.path} holds another run", value=spec.hash, hint=hint)


def open_journal(directory: RunDirectory) -> Journal:
    """Open the journal of a run."""
    return Journal(directory.path / "relay")


def go_back(directory: RunDirectory, journal: Journal, r: int, run: str = "") -> None:
    """Set the run back to the checkpoint of round r. Move later rows, checkpoints and visits to set-aside/.

    The visits of the journal move first: if the server is killed in between, it cannot find a visit of the history that
    was given up. Fences only grow, as always. `run` is the name of the run, which the checkpoint must have.
    """
    complete = directory.checkpoints.list_complete_rounds()
    if r not in complete:
        limit = f"one of {', '.join(map(str, complete))}" if complete else None
        hint = "serve --keep-checkpoints keeps more of them." if complete else "Begin again with --from-scratch."
        raise InputError("there is no whole checkpoint to go back to", value=r, limit=limit, hint=hint)
    directory.checkpoints.check_run(r, run)
    rows = directory.read_intact_rows()
    later = [
        *journal.list_files_from(r),
        journal.events.with_name(PENDING),
        *directory.checkpoints.list_files_after(r),
        *_list_results(directory),
    ]
    folder = directory.set_aside(f"back-to-{r}", later, copies=[directory.rounds])
    directory.write_rows([row for row in rows if row["round"] <= r])
    dropped = sum(row["round"] > r for row in rows)
    journal.note("back-to", round=r, rows=dropped, set_aside="" if folder is None else folder.name)


def start_again(directory: RunDirectory, journal: Journal) -> None:
    """Start the run again at round 0, with the same clients. Move all its results to set-aside/."""
    files = [
        *journal.list_files_from(0),
        journal.events.with_name(PENDING),
        *directory.checkpoints.list_files_after(-1),
        directory.rounds,
        directory.path / "environment.json",
        *_list_results(directory),
    ]
    folder = directory.set_aside("from-scratch", files)
    journal.note("from-scratch", round=0, set_aside="" if folder is None else folder.name)


def _list_results(directory: RunDirectory) -> Iterator[Path]:
    """Yield the files that a run writes at its end."""
    yield from (directory.model, directory.digest, directory.diverged)
    yield from (directory.path / name for name in ("rounds.csv", "report.html"))
