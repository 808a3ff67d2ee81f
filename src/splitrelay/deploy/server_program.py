"""`splitrelay serve`: wait for the clients, train with them, and keep the directory of the run up to date."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty
from threading import Event
from typing import Any

from splitrelay import __version__
from splitrelay.algorithms.base import Visit
from splitrelay.atomic_files import write_text
from splitrelay.data.images import ImageSet
from splitrelay.deploy.authorization import Authorizer, anyone
from splitrelay.deploy.backend import Inputs, compute_half_size
from splitrelay.deploy.backend_torch import BUILDING, compute_shape
from splitrelay.deploy.client_options import get_client_name
from splitrelay.deploy.client_records import ClientsFile, format_now, load_salt
from splitrelay.deploy.client_usage import UsageLog
from splitrelay.deploy.deployed_run import (
    ClientSizesFile,
    DeployedRun,
    check_deployable,
    check_same_run,
    go_back,
    keep_engine,
    name_run,
    open_journal,
    start_again,
)
from splitrelay.deploy.direct_handover import DirectHandover
from splitrelay.deploy.events import describe_last_writers, find_last_writers, read_events
from splitrelay.deploy.fed_averaging import FedServerHandover
from splitrelay.deploy.handshake import build_terms, find_disagreement, write_terms
from splitrelay.deploy.quarantine import Exclusions, Quarantine
from splitrelay.deploy.remote_clients import Handover, RemoteClients
from splitrelay.deploy.sample_terms import get_label_form
from splitrelay.deploy.sealed_state import SealedHalf
from splitrelay.deploy.server_visit import Policy, ReadableHalf, ServerVisits
from splitrelay.deploy.stalls import StallReporter, Wait
from splitrelay.deploy.state_probe import Finding
from splitrelay.deploy.status_report import Pace, report
from splitrelay.deploy.visit_scheduler import VisitContext
from splitrelay.errors import Diverged, InputError, OutputError, SplitrelayError, StorageError, VisitFailed
from splitrelay.evaluation import SLICE
from splitrelay.network.codec import Bounds
from splitrelay.network.connection_handler import ConnectionHandler
from splitrelay.network.limits import Limits, Timeouts
from splitrelay.network.messages import Accept, Bye, Hello, Refuse
from splitrelay.network.server import NetworkServer
from splitrelay.network.server_connection import EVALUATOR_NUMBER, ServerContext
from splitrelay.network.shared_event_loop import ClientConnected, ClientDisconnected
from splitrelay.network.status_rpc import collect_handler, status_handler
from splitrelay.participation import Order
from splitrelay.runs.build import load_data, resolve_spec
from splitrelay.runs.client_records import PREFIX, ClientRecord, make_printable
from splitrelay.runs.execute import Progress
from splitrelay.runs.run_directory import RunDirectory
from splitrelay.runs.sources import check_sources
from splitrelay.runs.spec import PASSES_ON, Spec

GREETINGS = 3  # arrivals of one client that are printed before the run starts
TERMS = "terms.toml"  # the terms that clients accept, for their operators


@dataclass(frozen=True)
class ServerConfig:
    """The settings of a server."""

    spec: Spec
    out: Path
    listen: str = "127.0.0.1:0"
    policy: Policy = field(default_factory=Policy)
    without: tuple[int, ...] = ()  # clients that take no part
    quorum: int | None = None  # number of clients that are enough to start; None: all
    credentials: Any = None
    admit: Authorizer = anyone
    timeouts: Timeouts = field(default_factory=Timeouts)
    limits: Limits = field(default_factory=Limits)
    linger: float = 0.0  # seconds to answer status requests after the last round
    fed: bool = False  # a fed server averages the client halves, which are sealed
    has_evaluator: bool = False  # the evaluator is not one of the clients: it has its own keys and connection
    readmit: tuple[int, ...] = ()  # clients to admit again that were excluded during the run
    back_to: int | None = None  # continue from the checkpoint of this round
    from_scratch: bool = False  # start at round 0, and move earlier results to set-aside/
    keep_checkpoints: int = 2
    accept_change: bool = False  # continue although code or data of the user have changed, and record it
    device: str = "cpu"  # the torch device of the server half and of the evaluation


class ServerProgram:
    """A server: it listens, waits for clients, and trains."""

    def __init__(
        self,
        config: ServerConfig,
        say: Callable[[str], None],
        stop: Event | None = None,
        warn: Callable[[str], None] | None = None,
        on_listening: Callable[[int], None] = lambda port: None,
    ) -> None:
        check_deployable(config.spec, config.has_evaluator, config.fed)
        self.config, self.say, self.stop = config, say, stop or Event()
        if config.back_to is not None and config.from_scratch:
            raise InputError("--back-to and --from-scratch exclude each other", hint="Take one of them.")
        self.directory = RunDirectory(config.out, config.keep_checkpoints)
        self.directory.check_kinds()
        self.excluded: frozenset[int] = frozenset()
        self.spec, self.engine_is = resolve_spec(keep_engine(config.spec, self.directory), config.device)
        self.data = load_data(self.spec.data)
        with BUILDING:
            self.shape = compute_shape(self.spec, *self._get_data_shape())
        self.port = 0
        self.phase, self.last = "waiting", dict[str, Any]()
        self.greeted, self.other = Counter[int](), set[int]()
        self.pace = Pace()
        self.records = dict[int, ClientRecord]()  # reports of clients, evaluator and fed server at their arrival
        self.clients_file: ClientsFile | None = None
        self.warn = warn or say  # for problems that need the operator
        self.left = dict[int, float]()  # clients that left before the first round, and when
        self.on_listening = on_listening  # gets the port

    @property
    def sealed(self) -> bool:
        """Whether the server cannot read the client half."""
        return self.config.fed or self.spec.route == "peer-to-peer"

    def _get_data_shape(self) -> tuple[Inputs, int]:
        train = self.data.train
        return train.shape if isinstance(train, ImageSet) else train.inputs, train.outputs

    def rows(self) -> Iterator[Progress]:
        """Listen, wait for the clients, train, and yield a row for every evaluation."""
        with self.directory.locked():
            check_same_run(self.spec, self.directory)
            if not (self.config.accept_change or self.config.from_scratch):
                check_sources(self.spec, self.directory)
            self._open_records()
            self._listen()
            why, again, reason = "the server was stopped", True, None
            try:
                yield from self._record_progress(self._train())
                why, again = "all rounds are done", False
                self._answer_late_clients(why)
            except SplitrelayError as error:
                reason = str(error)
                raise
            finally:
                self._close(why, again, reason or why)

    def _open_records(self) -> None:
        """Open the records of the run, and set the run back if the operator asks for it."""
        folder = self.directory.path / "relay"
        self.journal = open_journal(self.directory)
        self.client_sizes = ClientSizesFile(folder / "clients.json")
        self.quarantine = Quarantine(self.config.policy, self._note, self.warn, folder)
        self.quarantine.check_lifts(time.monotonic())
        self.stalls = StallReporter(self._note, self.warn, self.config.policy.stalled_after)
        self.has_begun = self.directory.spec.exists()  # then the clients and their numbers of samples are fixed
        if self.has_begun:
            self.client_sizes.check_absent(self.config.without)
            self.excluded = self._exclude()
        self.records = self.client_sizes.read_records() if self.has_begun else {}
        self.salt = load_salt(folder, any(one.digest for one in self.records.values()))
        self._restart()
        self.sizes = {m: n for m, n in self.client_sizes.read().items() if n} if self.has_begun else {}

    def _listen(self) -> None:
        """Start the network server, and write the terms for the operators of clients."""
        self.say(f"engine {self.spec.engine}: {self.engine_is}")
        self.network = NetworkServer(self._build_context(), self.journal.note)
        self.ledger = self._open_ledger()
        admit, timeouts = self.config.admit, self.config.timeouts
        self.network.add_method("Status", status_handler(self.report, admit.status, timeouts))
        self.network.add_method("Collect", collect_handler(self.model, admit.collect, timeouts))
        self.port = self.network.start(self.config.listen, self.config.credentials)
        self.journal.note("listening", port=self.port)
        self.say(f"listening on port {self.port}, spec {self.spec.hash}")
        file, terms = self.directory.path / "relay" / TERMS, self.network.context.terms
        write_text(file, write_terms(terms), private=True)
        self.say(f"clients join with --spec {file}, or with --accept-spec {terms.spec_hash}")
        self.on_listening(self.port)

    def _exclude(self) -> frozenset[int]:
        """Exclude clients from a run that has started, admit others again, and return the excluded ones."""
        absent = self.client_sizes.list_absent()
        if self.sealed and not self.config.has_evaluator and self.spec.evaluator in set(self.config.without) - absent:
            hint = "Peer to peer and with a fed server the run cannot go on without it."
            raise InputError("the evaluator of this run cannot be excluded", value=self.spec.evaluator, hint=hint)
        file = Exclusions(self.directory.path / "relay" / "excluded.json")
        M, config = self.spec.partition.M, self.config
        excluded = file.update(self.journal, M, absent, config.without, config.readmit)
        for m in sorted(excluded):
            self.say(f"client {m} is excluded: its visits are skipped until serve --with {m}")
        return excluded

    def _restart(self) -> None:
        """Set the run back if the operator asks for it. Raise InputError if progress would be lost silently."""
        directory, back_to = self.directory, self.config.back_to
        if self.config.from_scratch:
            start_again(directory, self.journal)
        elif back_to is not None:
            go_back(directory, self.journal, back_to, name_run(self.spec, self.salt))
        elif not directory.is_finished(self.spec.R):
            newest = max(directory.checkpoints.list_complete_rounds(self.spec.R), default=None)
            directory.check_progress(newest)
            if newest is not None:  # before clients are asked for anything
                directory.checkpoints.check_run(newest, name_run(self.spec, self.salt))

    def _open_ledger(self) -> UsageLog:
        """Open the log of the clients' usage. Set a damaged log aside, because nothing depends on it."""
        path = self.directory.path / "relay" / "paid.json"
        try:
            return UsageLog(path, self.network.get_usage_reports, self.network.count_socket_bytes)
        except InputError as error:
            folder, what = self.directory.set_aside("damaged", [path]), error.what
            if folder is None:
                raise
        to = folder.relative_to(self.directory.path) / "relay" / path.name
        self.journal.note("set-aside", file=str(path), to=str(to), why=what)
        self.say(f"{what}: it is in {self.directory.path / to} now, and a new one was started")
        return UsageLog(path, self.network.get_usage_reports, self.network.count_socket_bytes)

    def _close(self, why: str, again: bool, reason: str) -> None:
        """End all connections, even if the disk is full and the records cannot be written."""
        try:
            self.journal.note("closing", why=reason)
            self.ledger.save()
            if self.clients_file is not None:
                self._save_records()
                self.clients_file.save()
        except (OutputError, StorageError) as error:
            self.say(str(error))
        finally:
            self.network.close(why, again=again)

    def _train(self) -> Iterator[Progress]:
        if self.directory.is_finished(self.spec.R):
            yield from (Progress(row, is_old=True) for row in self.directory.read_rows())
            return
        self._wait_for_clients()
        self.phase = "training"
        # A client that has not connected yet counts 1. Clients that are excluded during the run keep their number of
        # samples, because it decides the order and the weights.
        sizes = {m: self.sizes.get(m, 1) for m in self._get_expected_clients() | self.excluded}
        with BUILDING:
            run = DeployedRun(
                self.spec,
                self.directory,
                self.data,
                self._build_clients,
                sizes,
                evaluator=EVALUATOR_NUMBER if self.config.has_evaluator else self.spec.evaluator,
                get_usage=self.ledger.build_row,
                back_to=self.config.back_to,
                salt=self.salt,
            )
        self.remote = run.clients
        server = {"software": f"splitrelay {__version__}", "cpu": self.network.context.terms.cpu}
        self.clients_file = ClientsFile(self.directory.path, run.trainer.order, lambda: self.records, server)
        try:
            yield from run.rows()
        except (Diverged, VisitFailed) as error:
            found = self._add_writers(error)
            if isinstance(error, Diverged):
                write_text(self.directory.diverged, f"{found}\n")
            raise found from error

    def _build_clients(self, order: Order, examine: Callable[[Visit[Any]], Finding]) -> RemoteClients:
        def make_handover(clients: RemoteClients) -> Handover:
            if self.config.fed:
                return FedServerHandover(clients)
            return DirectHandover(clients, order, self.spec.R) if self.sealed else Handover()

        transfer = SealedHalf if self.sealed else ReadableHalf
        is_full = self.spec.optimiser.draw == "full"
        largest_batch = max(self.sizes.values()) if is_full else self.spec.optimiser.batch
        shape, device = self._get_data_shape(), self.config.device
        visits = ServerVisits(self.spec, self.shape, *shape, largest_batch, transfer, device)
        context = VisitContext(
            self.network.connections,
            visits,
            self.journal,
            self.config.policy,
            self.quarantine,
            self.stalls,
            self.stop,
            examine,
        )
        return RemoteClients(
            context, make_handover=make_handover, excluded=self.excluded, on_arrival=self._record_arrival
        )

    def _add_writers(self, error: SplitrelayError) -> SplitrelayError:
        """Return the error with the clients that wrote the weights before it: their weights may be the reason."""
        writers = find_last_writers(read_events(self.journal.events), in_sequence=self.spec.algorithm in PASSES_ON)
        if writers is None:
            return error
        said = [error.hint, describe_last_writers(writers, self.directory.checkpoints.list_rounds())]
        hint = " ".join(sentence for sentence in said if sentence)
        return type(error)(error.what, value=error.value, limit=error.limit, hint=hint)

    def _record_progress(self, all_progress: Iterator[Progress]) -> Iterator[Progress]:
        for progress in all_progress:
            self.last = progress.row
            self.pace.record_row(progress.row["round"], afresh=progress.is_old)
            self.ledger.save()
            if self.clients_file is not None:
                self.clients_file.add_row(progress.row)
            yield progress
        self.phase = "finished"

    def _answer_late_clients(self, why: str) -> None:
        """Tell late clients that the run has ended, and answer status requests, for `linger` seconds."""
        until = time.monotonic() + self.config.linger
        for connection in self.network.connections.get_clients().values():
            self.network.connections.send(connection, Bye(why))
        while not self.stop.is_set() and time.monotonic() < until:
            event = _get_event(self.network.connections)
            if isinstance(event, ClientConnected):
                self.network.connections.send(event.connection, Bye(why))

    def report(self) -> str:
        """Return the status of the run as JSON."""
        return report(self)

    def model(self) -> bytes | str:
        """Return the final model, or the reason why there is none."""
        if self.phase != "finished":
            return f"the model is not finished: round {self.last.get('round', 0)} of {self.spec.R}"
        if self.sealed:
            return "this server has half a model; the evaluator has the whole one"
        return self.directory.model.read_bytes()

    def _wait_for_clients(self) -> None:
        """Wait until enough clients are connected. After a restart their sizes are known, and nobody is waited for."""
        while self.missing_clients:
            if self.stop.is_set():
                raise KeyboardInterrupt
            self.stalls.check(time.monotonic(), self.list_waits)
            event = _get_event(self.network.connections)
            if isinstance(event, ClientConnected):
                self._record_arrival(event)
                if self.greeted[event.m] < GREETINGS:  # two programs with the same keys would arrive without end
                    self.say(f"{get_client_name(event.m)} is here; {self.missing_clients} clients to come")
                self.greeted[event.m] += 1
            elif isinstance(event, ClientDisconnected) and not self.has_begun:  # it may return with other data
                self.journal.note("gone", client=event.m, why=event.why)
                self.sizes.pop(event.m, None)
                self.records.pop(event.m, None)
                self.left[event.m] = time.monotonic()
        needs_sizes = self.spec.weighted or self.spec.tau in ("proportional", "epochs")
        if self._get_quorum() < len(self._get_expected_clients()) and (
            needs_sizes or self.spec.optimiser.draw == "full"
        ):
            hint = "Leave --quorum out, or take weighted=false, tau=same, draw=passes."
            raise InputError("weights and steps by size need all clients before the first round", hint=hint)
        if not self.has_begun:
            self.client_sizes.write({**self.sizes, **dict.fromkeys(self.config.without, 0)}, self.records)
        self.has_begun = True

    def _note(self, event: str, **facts: Any) -> None:
        """Record an event. `journal.note` is read at each call, so that it can be replaced while the server runs."""
        self.journal.note(event, **facts)

    def list_waits(self, now: float) -> list[Wait]:
        """List what the run waits for, before the first round and later."""
        if self.phase == "waiting" and self.missing_clients:
            waits = []
            for m in sorted(self._get_expected_clients() - set(self.sizes)):
                left = self.left.get(m)
                kind, why = ("never-joined", "it has not joined yet") if left is None else ("away", "it left again")
                remedy = f"Start it with splitrelay join, or start the server again with --without {m} or --quorum."
                waits.append(Wait(m, kind, self.pace.began if left is None else left, why, remedy))
            return waits
        remote = getattr(self, "remote", None)
        return [] if remote is None or self.phase == "finished" else remote.list_waits(now)

    @property
    def missing_clients(self) -> int:
        """The number of clients that have to connect before the run starts."""
        return max(self._get_quorum() - len(self._get_expected_clients() & set(self.sizes)), 0)

    def _get_expected_clients(self) -> set[int]:
        return set(range(self.spec.partition.M)) - set(self.config.without) - self.excluded

    def _get_quorum(self) -> int:
        wanted = len(self._get_expected_clients())
        return wanted if self.config.quorum is None else min(self.config.quorum, wanted)

    def _record_arrival(self, event: ClientConnected) -> None:
        facts = {"software": make_printable(event.software), "cpu": make_printable(event.accept.cpu)}
        digest = event.accept.data_digest.hex()
        self.journal.note("arrived", client=event.m, samples=event.accept.n, **facts, digest=digest)
        why = self._find_data_change(event.m, event.accept)
        if why is not None:  # the run started since its handshake
            self.network.connections.send(event.connection, Refuse(why, final=True))
            return
        self._compare_cpu(event.m, facts["cpu"])
        before = self.records.get(event.m, ClientRecord(event.m))
        after = before.add_arrival(event.accept.n, digest, facts["software"], facts["cpu"], format_now())
        self.records[event.m] = after
        if self.has_begun and (before.digest, before.software, before.cpu) != (after.digest, after.software, after.cpu):
            self._save_records()
        if event.m < EVALUATOR_NUMBER and not (self.has_begun and event.m in self.sizes):
            self.sizes[event.m] = event.accept.n
            if self.has_begun:  # it connected after the start
                self.client_sizes.write({**self.client_sizes.read(), event.m: event.accept.n}, self.records)

    def _save_records(self) -> None:
        """Write the reports of the clients to the server's own file."""
        self.client_sizes.write(self.client_sizes.read(), self.records)

    def _find_data_change(self, m: int, accept: Accept) -> str | None:
        """Return the reason to refuse a client whose data have changed since it first took part, or None."""
        known = self.records.get(m)
        digest = accept.data_digest.hex()
        if not self.has_begun or known is None or not known.digest or digest == known.digest:
            return None
        what = f"the data of {get_client_name(m)} differ from those it first took part with"
        digests = f"digest {digest[:PREFIX] or 'not given'} now, {known.digest[:PREFIX]} then"
        return f"{what} ({digests}): bring the same data, or begin another run"

    def _compare_cpu(self, m: int, cpu: str) -> None:
        """Record and print once that a client has another processor: its bits may differ, which is allowed."""
        here = self.network.context.terms.cpu
        if cpu != here and m not in self.other:
            self.journal.note("other-cpu", client=m, cpu=cpu, server=here)
            self.say(f"{get_client_name(m)} computes with {cpu}, this server with {here}: equal bits are not promised")
            self.other.add(m)

    def _build_context(self) -> ServerContext:
        shape, dtype = self.shape, self.spec.model.dtype
        config = self.config
        terms = build_terms(
            self.spec,
            self.data,
            config.timeouts.heartbeat,
            self.sealed,
            config.has_evaluator,
            self.salt,
            config.device,
        )
        full = self.spec.optimiser.draw == "full"
        bounds = Bounds(
            batch=self.config.limits.batch if full else self.spec.optimiser.batch,
            h=shape.h,
            dtype=dtype,
            classes=self.data.train.outputs,
            labels=get_label_form(terms),
            norms=shape.norms,
            look=SLICE,
        )

        def check_accept(hello: Hello, accept: Accept) -> str | None:
            different = find_disagreement(terms, accept, trains=hello.client < EVALUATOR_NUMBER)
            if different is not None:
                return different
            known = self.sizes.get(hello.client, accept.n)
            if self.has_begun and known != accept.n:
                had = f"client {hello.client} has {accept.n} samples now and had {known} when it first took part"
                return f"{had}: bring the same data, or begin another run"
            other = self._find_data_change(hello.client, accept)
            if other is not None:
                return other
            if hello.client in self.excluded:
                return f"client {hello.client} is excluded from this run (serve --without, until serve --with)"
            if hello.client in self.config.without:
                return f"client {hello.client} is left out of this run (serve --without)"
            if full and accept.n > bounds.batch:
                return f"a step on all of {accept.n} samples is too long. Bring at most {bounds.batch}."
            return None

        half = compute_half_size(self.spec, shape)
        return ServerContext(
            terms, bounds, half, self.spec.partition.M, config.admit.join, check_accept,
            config.has_evaluator, config.fed, config.limits, config.timeouts,
        )  # fmt: skip


def _get_event(connections: ConnectionHandler) -> object:
    try:
        return connections.inbox.get(timeout=connections.timeouts.server_tick)
    except Empty:
        return None
