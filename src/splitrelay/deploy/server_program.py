"""`splitrelay serve`: wait for the clients, train with them, keep the run's directory."""

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
from splitrelay.atomic_files import write_text
from splitrelay.data import load
from splitrelay.deploy.authorization import Authorizer, anyone
from splitrelay.deploy.backend import half_bytes
from splitrelay.deploy.backend_torch import BUILDING, shape_of
from splitrelay.deploy.client_options import get_client_name
from splitrelay.deploy.client_records import ClientsFile, format_now, load_salt
from splitrelay.deploy.client_usage import UsageLog
from splitrelay.deploy.deployed_run import ClientSizesFile, DeployedRun, agree, begun, journal_of, refuse_undeployable
from splitrelay.deploy.direct_handover import DirectHandover
from splitrelay.deploy.event_record import describe_last_writers, find_last_writers, read_events
from splitrelay.deploy.exclusion import Exclusions
from splitrelay.deploy.fed_averaging import FedServerHandover
from splitrelay.deploy.handshake import build_terms, disagreement, write_terms
from splitrelay.deploy.quarantine import Quarantine
from splitrelay.deploy.remote_clients import RemoteClients
from splitrelay.deploy.restart import go_back, start_again
from splitrelay.deploy.sealed_state import SealedHalf
from splitrelay.deploy.server_visit import Policy, ReadableHalf, ServerVisits
from splitrelay.deploy.stalls import StallReporter, Wait
from splitrelay.deploy.status_report import Pace, report
from splitrelay.errors import Diverged, InputError, OutputError, SplitrelayError, StorageError, VisitFailed
from splitrelay.evaluation import SLICE
from splitrelay.network.codec import Bounds
from splitrelay.network.connection_handler import EVALUATOR_NUMBER, ServerContext
from splitrelay.network.limits import Limits, Timeouts
from splitrelay.network.messages import Accept, Bye, Hello, Refuse
from splitrelay.network.server import NetworkServer
from splitrelay.network.shared_event_loop import ClientConnected, ClientDisconnected
from splitrelay.network.status_rpc import collect_handler, status_handler
from splitrelay.runs.build import resolve_spec
from splitrelay.runs.client_records import PREFIX, ClientRecord, make_printable
from splitrelay.runs.execute import Progress
from splitrelay.runs.run_directory import RunDirectory
from splitrelay.runs.spec import PASSES_ON, Spec

GREETINGS = 3  # of one client, until the run begins
TERMS = "terms.toml"  # all that clients agree to, for their operators


@dataclass(frozen=True)
class ServerConfig:
    """How a spec is served: where, to whom, with how much patience."""

    spec: Spec
    out: Path
    listen: str = "127.0.0.1:0"
    policy: Policy = field(default_factory=Policy)
    without: tuple[int, ...] = ()  # clients that will not come
    quorum: int | None = None  # clients with whom to begin; all unless said
    credentials: Any = None
    admit: Authorizer = anyone
    timeouts: Timeouts = field(default_factory=Timeouts)
    limits: Limits = field(default_factory=Limits)
    linger: float = 0.0  # seconds to answer questions after the last round
    fed: bool = False  # the clients' halves are averaged by a fed server, and sealed
    judge: bool = False  # the evaluator is none of the clients: it comes with keys and a connection of its own
    readmit: tuple[int, ...] = ()  # clients that were excluded during the run, and may come again
    back_to: int | None = None  # the round of a checkpoint from which to go on
    from_scratch: bool = False  # begin at round 0, whatever is there
    keep_checkpoints: int = 2


class ServerProgram:
    """The server, from listening to the last row."""

    def __init__(
        self,
        offer: ServerConfig,
        say: Callable[[str], None],
        stop: Event | None = None,
        warn: Callable[[str], None] | None = None,
    ) -> None:
        refuse_undeployable(offer.spec, offer.judge, offer.fed)
        self.offer, self.say, self.stop = offer, say, stop or Event()
        if offer.back_to is not None and offer.from_scratch:
            raise InputError("--back-to and --from-scratch exclude each other", hint="Take one of them.")
        self.directory = RunDirectory(offer.out, offer.keep_checkpoints)
        self.excluded: frozenset[int] = frozenset()
        self.spec, self.engine_is = resolve_spec(begun(offer.spec, self.directory))
        self.data = load(self.spec.data.name)
        with BUILDING:
            self.shape = shape_of(self.spec, *self._kind())
        self.port = 0
        self.phase, self.last = "waiting", dict[str, Any]()
        self.greeted, self.other = Counter[int](), set[int]()
        self.pace = Pace()
        self.records = dict[int, ClientRecord]()  # what clients, evaluator and fed server told when they arrived
        self.clients_file: ClientsFile | None = None
        self.warn = warn or say  # for what the operator must see to
        self.left = dict[int, float]()  # clients that left before the first round, and when
        self.listening: Callable[[int], None] = lambda port: None

    @property
    def sealed(self) -> bool:
        """Whether the clients' half is not for us to read."""
        return self.offer.fed or self.spec.route == "peer-to-peer"

    def _kind(self) -> tuple[tuple[int, int, int], int]:
        return self.data.train.shape, len(self.data.train.classes)

    def rows(self) -> Iterator[Progress]:
        """Listen, wait for the clients, train: a row for every look."""
        with self.directory.locked():
            agree(self.spec, self.directory)
            self.journal = journal_of(self.directory)
            self.census = ClientSizesFile(self.directory.path / "relay" / "clients.json")
            self.quarantine = Quarantine(self.offer.policy, self._note, self.warn, self.directory.path / "relay")
            self.quarantine.check_lifts(time.monotonic())
            self.stalls = StallReporter(self._note, self.warn, self.offer.policy.stalled_after)
            self.begun = self.directory.spec.exists()  # from then on it is known who takes part, and with how much
            if self.begun:
                self.census.refuse_others(self.offer.without)
                self.excluded = self._exclude()
            self._restart()
            self.sizes = {m: n for m, n in self.census.read().items() if n} if self.begun else {}
            self.records = self.census.records() if self.begun else {}
            pinned = any(one.digest for one in self.records.values())
            self.salt = load_salt(self.directory.path / "relay", pinned)
            self.say(f"engine {self.spec.engine}: {self.engine_is}")
            self.hub = NetworkServer(self._house(), self.journal.note)
            self.ledger = self._open_ledger()
            self.hub.add_method("Status", status_handler(self.report, self.offer.admit.status, self.offer.timeouts))
            self.hub.add_method("Collect", collect_handler(self.model, self.offer.admit.collect, self.offer.timeouts))
            self.port = self.hub.start(self.offer.listen, self.offer.credentials)
            self.journal.note("listening", port=self.port)
            self.say(f"listening on port {self.port}, spec {self.spec.hash}")
            file, terms = self.directory.path / "relay" / TERMS, self.hub.context.terms
            write_text(file, write_terms(terms), private=True)
            self.say(f"clients join with --spec {file}, or with --accept-spec {terms.spec_hash}")
            self.listening(self.port)
            why, again, reason = "the server was stopped", True, None
            try:
                yield from self._seen(self._trained())
                why, again = "all rounds are done", False
                self._linger(why)
            except SplitrelayError as error:
                reason = str(error)
                raise
            finally:
                self._close(why, again, reason or why)

    def _exclude(self) -> frozenset[int]:
        """Exclude clients from a run that has begun, and let others in again."""
        absent = self.census.absent()
        if self.sealed and not self.offer.judge and self.spec.evaluator in set(self.offer.without) - absent:
            hint = "Peer to peer and with a fed server the run cannot go on without it."
            raise InputError("the evaluator of this run cannot be excluded", value=self.spec.evaluator, hint=hint)
        file = Exclusions(self.directory.path / "relay" / "excluded.json")
        M, offer = self.spec.partition.M, self.offer
        excluded = file.update(self.journal, M, absent, offer.without, offer.readmit)
        for m in sorted(excluded):
            self.say(f"client {m} is excluded: its visits are skipped until serve --with {m}")
        return excluded

    def _restart(self) -> None:
        """Set the run back where that is asked for; where progress would be lost without a word, refuse."""
        directory, back_to = self.directory, self.offer.back_to
        if self.offer.from_scratch:
            start_again(directory, self.journal)
        elif back_to is not None:
            go_back(directory, self.journal, back_to)
        elif not directory.is_finished(self.spec.R):
            directory.check_progress(max(directory.checkpoints.list_complete_rounds(self.spec.R), default=None))

    def _open_ledger(self) -> UsageLog:
        """Nothing depends on it: one that is damaged is set aside, with a warning, and another one is begun."""
        path = self.directory.path / "relay" / "paid.json"
        try:
            return UsageLog(path, self.hub.get_usage_reports, self.hub.count_socket_bytes)
        except InputError as error:
            folder, what = self.directory.set_aside("damaged", [path]), error.what
            if folder is None:
                raise
        to = folder.relative_to(self.directory.path) / "relay" / path.name
        self.journal.note("set-aside", file=str(path), to=str(to), why=what)
        self.say(f"{what}: it is in {self.directory.path / to} now, and another one is begun")
        return UsageLog(path, self.hub.get_usage_reports, self.hub.count_socket_bytes)

    def _close(self, why: str, again: bool, reason: str) -> None:
        """The clients are told also where the record has no room for it."""
        try:
            self.journal.note("closing", why=reason)
            self.ledger.save()
            self._keep_clients()
        except (OutputError, StorageError) as error:
            self.say(str(error))
        finally:
            self.hub.close(why, again=again)

    def _trained(self) -> Iterator[Progress]:
        if self.directory.is_finished(self.spec.R):
            yield from (Progress(row, is_old=True) for row in self.directory.read_rows())
            return
        self._wait()
        self.phase = "training"
        clients: type[RemoteClients] = RemoteClients
        if self.sealed:
            clients = FedServerHandover if self.offer.fed else DirectHandover
        transfer = SealedHalf if self.sealed else ReadableHalf
        server_visits = ServerVisits(self.spec, self.shape, *self._kind(), self._largest(), transfer)
        watches = (self.quarantine, self.stalls)
        self.remote = remote = clients(self.hub, server_visits, self.journal, self.offer.policy, self.stop, *watches)
        remote.arrived = self._counted
        remote.excluded = self.excluded
        with BUILDING:
            judge = EVALUATOR_NUMBER if self.offer.judge else self.spec.evaluator
            hosted = DeployedRun(
                self.spec, self.directory, self.data, remote, self._dealt(), judge, back_to=self.offer.back_to
            )
            hosted.measured = self.ledger.row
        server = {"software": f"splitrelay {__version__}", "cpu": self.hub.context.terms.cpu}
        order = hosted.learning.order
        self.clients_file = ClientsFile(self.directory.path, order, lambda: self.records, server)
        if isinstance(remote, DirectHandover):
            remote.order, remote.R = hosted.learning.order, self.spec.R
        try:
            yield from hosted.rows()
        except (Diverged, VisitFailed) as error:
            found = self._with_writers(error)
            if isinstance(error, Diverged):
                write_text(self.directory.diverged, f"{found}\n")
            raise found from error

    def _with_writers(self, error: SplitrelayError) -> SplitrelayError:
        """Add to an error of a visit who wrote the weights that it began from: they may be the reason."""
        writers = find_last_writers(read_events(self.journal.events), in_sequence=self.spec.algorithm in PASSES_ON)
        if writers is None:
            return error
        said = [error.hint, describe_last_writers(writers, self.directory.checkpoints.list_rounds())]
        hint = " ".join(sentence for sentence in said if sentence)
        return type(error)(error.what, value=error.value, limit=error.limit, hint=hint)

    def _seen(self, all_progress: Iterator[Progress]) -> Iterator[Progress]:
        for progress in all_progress:
            self.last = progress.row
            self.pace.look(progress.row["round"], afresh=progress.is_old)
            self.ledger.save()
            if self.clients_file is not None:
                self.clients_file.add_row(progress.row)
            yield progress
        self.phase = "finished"

    def _linger(self, why: str) -> None:
        """Late clients are told that all is over; questions are answered."""
        until = time.monotonic() + self.offer.linger
        for link in self.hub.get_clients().values():
            self.hub.send(link, Bye(why))
        while not self.stop.is_set() and time.monotonic() < until:
            event = _next(self.hub)
            if isinstance(event, ClientConnected):
                self.hub.send(event.link, Bye(why))

    def report(self) -> str:
        """The status of the run, as JSON."""
        return report(self)

    def model(self) -> bytes | str:
        """The final model, or why there is none."""
        if self.phase != "finished":
            return f"the model is not finished: round {self.last.get('round', 0)} of {self.spec.R}"
        if self.sealed:
            return "this server has half a model; the evaluator has the whole one"
        return self.directory.model.read_bytes()

    def _wait(self) -> None:
        """Until all are here without whom the run cannot begin; after a restart they are known."""
        while self.awaited:
            if self.stop.is_set():
                raise KeyboardInterrupt
            self.stalls.check(time.monotonic(), self.list_waits)
            event = _next(self.hub)
            if isinstance(event, ClientConnected):
                self._counted(event)
                self._greet(event.m)
            elif isinstance(event, ClientDisconnected) and not self.begun:  # it may come back with other data
                self.journal.note("gone", client=event.m, why=event.why)
                self.sizes.pop(event.m, None)
                self.records.pop(event.m, None)
                self.left[event.m] = time.monotonic()
        if self._enough() < len(self._wanted()):
            self._refuse_unsized()
        if not self.begun:
            self.census.write({**self.sizes, **dict.fromkeys(self.offer.without, 0)}, self.records)
        self.begun = True

    def _note(self, event: str, **facts: Any) -> None:
        self.journal.note(event, **facts)

    def list_waits(self, now: float) -> list[Wait]:
        """Return whom the run waits for, before the first round and later."""
        if self.phase == "waiting" and self.awaited:
            return [self._start_wait(m) for m in sorted(self._wanted() - set(self.sizes))]
        remote = getattr(self, "remote", None)
        return [] if remote is None or self.phase == "finished" else remote.list_waits(now)

    def _start_wait(self, m: int) -> Wait:
        left = self.left.get(m)
        kind, why = ("never-joined", "it has not joined yet") if left is None else ("away", "it left again")
        remedy = f"Start it with splitrelay join, or start the server again with --without {m} or --quorum."
        return Wait(m, kind, self.pace.began if left is None else left, why, remedy)

    def _greet(self, m: int) -> None:
        """Some times each: two programs with the same keys come again and again."""
        if self.greeted[m] < GREETINGS:
            self.say(f"{get_client_name(m)} is here; {self.awaited} clients to come")
        self.greeted[m] += 1

    @property
    def awaited(self) -> int:
        """Clients without whom the run does not begin, and who are not here yet."""
        return max(self._enough() - len(self._wanted() & set(self.sizes)), 0)

    def _wanted(self) -> set[int]:
        return set(range(self.spec.partition.M)) - set(self.offer.without) - self.excluded

    def _dealt(self) -> dict[int, int]:
        """How much each client has; where that plays no part, something of those who are still to come.

        Clients that are excluded during the run keep what they had: it decides the order and the weights.
        """
        return {m: self.sizes.get(m, 1) for m in self._wanted() | self.excluded}

    def _enough(self) -> int:
        wanted = len(self._wanted())
        return wanted if self.offer.quorum is None else min(self.offer.quorum, wanted)

    def _largest(self) -> int:
        """Samples of the largest step."""
        full = self.spec.optimiser.draw == "full"
        return max(self.sizes.values()) if full else self.spec.optimiser.batch

    def _refuse_unsized(self) -> None:
        if self.spec.weighted or self.spec.tau == "proportional" or self.spec.optimiser.draw == "full":
            hint = "Leave --quorum out, or take weighted=false, tau=same, draw=passes."
            raise InputError("weights and steps by size need all clients before the first round", hint=hint)

    def _counted(self, event: ClientConnected) -> None:
        told = {"software": make_printable(event.software), "cpu": make_printable(event.accept.cpu)}
        digest = event.accept.data_digest.hex()
        self.journal.note("arrived", client=event.m, samples=event.accept.n, **told, digest=digest)
        why = self._other_data(event.m, event.accept)
        if why is not None:  # the run began between its handshake and now
            self.hub.send(event.link, Refuse(why, final=True))
            return
        self._compare(event.m, told["cpu"])
        before = self.records.get(event.m, ClientRecord(event.m))
        after = before.add_arrival(event.accept.n, digest, told["software"], told["cpu"], format_now())
        self.records[event.m] = after
        if self.begun and (before.digest, before.software, before.cpu) != (after.digest, after.software, after.cpu):
            self._keep_records()
        if event.m < EVALUATOR_NUMBER and not (self.begun and event.m in self.sizes):
            self.sizes[event.m] = event.accept.n
            if self.begun:  # it comes later than the others
                self.census.write({**self.census.read(), event.m: event.accept.n}, self.records)

    def _keep_records(self) -> None:
        """Write down what clients told, in the server's own file and in the record of the run."""
        self.census.write(self.census.read(), self.records)

    def _keep_clients(self) -> None:
        if self.clients_file is not None:
            self._keep_records()
            self.clients_file.save()

    def _other_data(self, m: int, accept: Accept) -> str | None:
        """Return why the data of a client are not those that it first took part with; None where they may be."""
        known = self.records.get(m)
        digest = accept.data_digest.hex()
        if not self.begun or known is None or not known.digest or digest == known.digest:
            return None
        what = f"the data of {get_client_name(m)} differ from those it first took part with"
        digests = f"digest {digest[:PREFIX] or 'not given'} now, {known.digest[:PREFIX]} then"
        return f"{what} ({digests}): bring the same data, or begin another run"

    def _compare(self, m: int, cpu: str) -> None:
        """Another processor may compute other bits: that is allowed, and said once."""
        here = self.hub.context.terms.cpu
        if cpu != here and m not in self.other:
            self.journal.note("other-cpu", client=m, cpu=cpu, server=here)
            self.say(f"{get_client_name(m)} computes with {cpu}, this server with {here}: equal bits are not promised")
            self.other.add(m)

    def _house(self) -> ServerContext:
        shape, dtype = self.shape, self.spec.model.dtype
        terms = build_terms(
            self.spec, self.data, self.offer.timeouts.heartbeat, self.sealed, self.offer.judge, self.salt
        )
        full = self.spec.optimiser.draw == "full"
        bounds = Bounds(
            batch=self.offer.limits.batch if full else self.spec.optimiser.batch,
            h=shape.h,
            dtype=dtype,
            classes=len(terms.classes),
            norms=shape.norms,
            look=SLICE,
        )

        def agreed(hello: Hello, accept: Accept) -> str | None:
            different = disagreement(terms, accept, trains=hello.client < EVALUATOR_NUMBER)
            if different is not None:
                return different
            known = self.sizes.get(hello.client, accept.n)
            if self.begun and known != accept.n:
                had = f"client {hello.client} has {accept.n} samples now and had {known} when it first took part"
                return f"{had}: bring the same data, or begin another run"
            other = self._other_data(hello.client, accept)
            if other is not None:
                return other
            if hello.client in self.excluded:
                return f"client {hello.client} is excluded from this run (serve --without, until serve --with)"
            if hello.client in self.offer.without:
                return f"client {hello.client} is left out of this run (serve --without)"
            if full and accept.n > bounds.batch:
                return f"a step on all of {accept.n} samples is too long. Bring at most {bounds.batch}."
            return None

        half = half_bytes(self.spec, shape)
        offer = self.offer
        return ServerContext(
            terms, bounds, half, self.spec.partition.M, offer.admit.join, agreed, offer.judge, offer.fed,
            offer.limits, offer.timeouts,
        )  # fmt: skip


def _next(hub: NetworkServer) -> object:
    try:
        return hub.inbox.get(timeout=hub.timeouts.server_tick)
    except Empty:
        return None
