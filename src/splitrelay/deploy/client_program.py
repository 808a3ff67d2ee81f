"""`splitrelay join`: a client program, from the first handshake to the end of the run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

from splitrelay import __version__
from splitrelay.atomic_files import check_writable
from splitrelay.data.images import Samples
from splitrelay.data.tables import Table
from splitrelay.data.user_datasets import Raw
from splitrelay.deploy.authorization import load_identity_with_role
from splitrelay.deploy.backend import (
    PARSING,
    ClientContext,
    Shape,
    compute_half_size,
    derive_client_shape,
    get_backend,
    import_backend,
)
from splitrelay.deploy.client_data import (
    DataDigests,
    convert_images,
    describe_data,
    get_sample_word,
    read_raw,
    read_source,
)
from splitrelay.deploy.client_options import ClientOptions, get_client_name, get_client_number
from splitrelay.deploy.client_usage import UsageTimer
from splitrelay.deploy.client_visit import Evaluator, VisitRunner
from splitrelay.deploy.handshake import check_agreed, check_code, check_named_files, read_spec
from splitrelay.deploy.lease_limits import (
    AllowedVisits,
    Disclosure,
    ServerBrokeSpec,
    UsedVisits,
    check_client_half,
    compute_disclosure,
    derive_allowed_visits,
)
from splitrelay.deploy.sample_terms import convert_samples, get_columns, get_model_sizes
from splitrelay.errors import Diverged, InputError, OutputError, SplitrelayError, StorageError, WorkError
from splitrelay.kernels.evaluator import SLICE
from splitrelay.network import limits
from splitrelay.network.client_session import HeldVisit, Session
from splitrelay.network.codec import BadMessage, Bounds
from splitrelay.network.grpc_channel import (
    ClientStopped,
    ConnectionLost,
    ServerEnded,
    ServerRefused,
    VisitCancelled,
    open_channel,
)
from splitrelay.network.messages import Accept, EvaluationRequest, Fail, Lease, Terms
from splitrelay.network.peer_transfer import PeerEndpoint
from splitrelay.network.server_connection import EVALUATOR_NUMBER, FED_SERVER_NUMBER
from splitrelay.runs.spec import Spec
from splitrelay.runs.user_parts import list_code
from splitrelay.security import certificates
from splitrelay.security.certificates import CLIENT, EVALUATOR
from splitrelay.security.credential_reload import IdentityReloader
from splitrelay.security.encryption import RejectedHalf, SecretUnavailable, WrongEpoch
from splitrelay.security.identity import Identity, build_channel_credentials
from splitrelay.security.sealing_session import Sealer

if TYPE_CHECKING:
    from splitrelay.deploy.fed_server import FedServer

Say = Callable[[str], None]
LEFT = "left"  # the reason for the end if a signal has stopped the client
DIVERGED = "Check this client's data with join --check. Only the operator of the server can lower eta or set clip."


class EndedEarly(WorkError):
    """The server ended the run before the last round."""


class TermsNotAgreed(SplitrelayError):
    """A check ended before anything was sent, because nobody has agreed to the server's terms."""


class ClientProgram:
    """A client that takes part until the server ends the run."""

    def __init__(
        self,
        options: ClientOptions,
        say: Say,
        stop: Event | None = None,
        warn: Say | None = None,
    ) -> None:
        identity = _load_identity(options)
        self.m = get_client_number(options, identity)
        self.options, self.say, self.warn = options, say, warn or say
        self.keys = None if identity is None else IdentityReloader(identity, self.warn)
        self.peers = None if self.keys is None else PeerEndpoint(self.keys, self.say, self.warn, options.timeouts)
        self.stop = stop or Event()
        self.visitor: VisitRunner | FedServer | None = None
        self.images: Samples | None = None
        self.test_images: Samples | None = None  # an evaluator's
        self.digests = DataDigests(self.m, options.keys)
        self.digest = b""  # of the data, as it was sent last
        self.raw: Raw | Table | None = None  # the data, read before the server is contacted
        self.is_prepared, self.last_warning = False, ""
        self.terms: Terms | None = None
        self.disclosure: Disclosure | None = None
        self.visits = 0
        self.last_round: int | None = None  # of its last committed visit
        self.usage = UsageTimer(lambda: self.session.meter.waiting)
        self.session = Session(
            self.m,
            self._dial,
            self._accept_terms,
            software=f"splitrelay {__version__}",
            patience=options.patience,
            stop=self.stop,
            address=options.address,
            timeouts=options.timeouts,
            limits=options.limits,
            note=self.say,
            warn=self.warn,
        )

    def prepare(self) -> None:
        """Open the port for other clients and read the data, before the server is contacted."""
        if not self.is_prepared:
            if self.options.listen:
                if self.peers is None:
                    hint = "Join with --keys, or without --listen."
                    raise InputError("only a client with keys can be reached by other clients", hint=hint)
                self.peers.listen(self.options.listen)
            self.raw = None if self.m == FED_SERVER_NUMBER else self._read_data()
        self.is_prepared = True

    def leave(self) -> None:
        """Close all connections."""
        self.session.disconnect()
        if self.peers is not None:
            self.peers.close()

    def run(self) -> str:
        """Take part in the run, and return the reason for its end."""
        try:
            self.prepare()
            self.session.connect()
            if self.options.check:
                self.session.leave("it was a check")
                return "\n".join([*self._describe(), "all is well: the server would take this client"])
            self.say(
                f"joined as {get_client_name(self.m)} with {len(self.images or ())} {get_sample_word(self.images)}"
            )
            return self._take_part()
        except ServerEnded as error:
            self._check_complete(error)
            return str(error)
        except TermsNotAgreed as error:
            return "\n".join([*self._describe(), str(error)])
        except ClientStopped:
            return LEFT
        finally:
            self.leave()

    def _check_complete(self, error: ServerEnded) -> None:
        """Raise EndedEarly if the server ended the run before this client has done its part of the last round.

        A client that is drawn in some rounds only cannot know when its last visit was (UsedVisits.is_complete).
        """
        visitor, R = self.visitor, 0 if self.visitor is None else self.visitor.spec.R
        if isinstance(visitor, VisitRunner):
            if self.m == EVALUATOR_NUMBER:
                is_complete = visitor.has_model
            else:
                is_complete = visitor.used.is_complete(visitor.spec)
        else:
            is_complete = visitor is not None and visitor.newest > 0
        if not is_complete:
            last = "none" if self.last_round is None else f"in round {self.last_round}"
            hint = "Ask the operator of the server whether it was stopped, or went on without this client."
            what = f"the server ended the run early ({error})"
            raise EndedEarly(
                what, value=f"last part of {get_client_name(self.m)}: {last}", limit=f"{R} rounds", hint=hint
            )

    def _describe(self) -> list[str]:
        """Describe the data and what would be sent, for --check."""
        found = [] if self.images is None else [describe_data(get_client_name(self.m), self.images, self.digest)]
        if self.test_images is not None and self.m != EVALUATOR_NUMBER:
            found.append(describe_data(f"{get_client_name(self.m)} as the evaluator", self.test_images))
        if self.disclosure is not None and self.terms is not None:
            found += ["it would send", *(f"  {line}" for line in self.disclosure.describe())]
            found.append(f"  digest of the terms: {self.terms.spec_hash}")
        return found

    def _take_part(self) -> str:
        while not self.stop.is_set():
            try:
                self._handle_request()
            except VisitCancelled as error:
                self.say(f"visit taken back: {error}")
                self.session.holding = HeldVisit()
            except (ConnectionLost, ServerEnded, ServerRefused, BadMessage) as error:
                if (isinstance(error, ServerEnded) and not error.again) or (
                    isinstance(error, ServerRefused) and error.final
                ):
                    raise
                self.say(f"{error}; connecting again")
                self.session.holding = HeldVisit()
                self.session.reconnect()
        self.session.leave("the client was told to stop")
        return LEFT

    def _handle_request(self) -> None:
        """Wait for a lease and make the visit, or wait for a half and evaluate it."""
        request = self._wait_for_request()
        if request is None:
            return
        try:
            self._execute_request(request)
            self.session.fruitless = 0
        except ServerBrokeSpec as error:  # report it to the server, and do not connect again
            self.session.send(Fail(request.fence, str(error)[: limits.TEXT]))
            self.session.leave("the server does not keep to the spec")
            raise
        except Diverged as error:
            self._warn_once(f"the visit failed: {error.what}. {DIVERGED}")
            self.session.send(Fail(request.fence, str(error)[: limits.TEXT], diverged=True))
        except (RejectedHalf, WrongEpoch, SecretUnavailable, OutputError, StorageError) as error:
            why = f"{type(error).__name__}: {error}"
            later = not isinstance(error, RejectedHalf)  # keys that have not arrived yet, or a full disk
            self._warn_once(f"{'not yet' if later else 'refused'}: {why}")
            self.session.send(Fail(request.fence, why[: limits.TEXT], later=later))
        finally:
            self.session.holding = HeldVisit()

    def _warn_once(self, text: str) -> None:
        """Warn the operator once; report the same text again only through `say`."""
        (self.say if text == self.last_warning else self.warn)(text)
        self.last_warning = text

    def _execute_request(self, request: Lease | EvaluationRequest) -> None:
        assert self.visitor is not None
        if isinstance(request, EvaluationRequest):
            self.visitor.answer_request(self.session, request)
            return
        if not isinstance(self.visitor, VisitRunner):
            raise ServerBrokeSpec("the server asks the fed server for a visit", hint="Ask its operator.")
        with self.usage.visit():
            self.visitor.visit(self.session, request)
        self.visits, self.last_round = self.visits + 1, request.r
        self.visitor.used.record_commit(request.r)
        self.say(f"round {request.r}: {request.K} steps, committed")

    def _wait_for_request(self) -> Lease | EvaluationRequest | None:
        connection = self.session.connection
        assert connection is not None
        while not self.stop.is_set():
            if connection.wait_for_message(1.0):
                request = self.session.receive()
                if isinstance(request, Lease | EvaluationRequest):
                    return request
        return None

    def _dial(self) -> Any:
        credentials = None if self.keys is None else build_channel_credentials(self.keys.get_identity())
        return open_channel(self.options.address, credentials)

    def _accept_terms(self, terms: Terms) -> Accept:
        """Check the terms before the first visit, and return the message that accepts them."""
        spec = read_spec(terms)
        if self.terms is None:
            self._start_run(spec, terms)
        elif terms.spec_hash != self.terms.spec_hash:
            hint = "Nothing of the new run was sent. Read its spec, and join again."
            what = "the server's terms have changed since this client joined"
            raise InputError(what, value=terms.spec_hash, limit=self.terms.spec_hash, hint=hint)
        if self.options.check and not self._has_agreed():
            accept = f"--accept-spec {terms.spec_hash}"
            raise TermsNotAgreed(
                f"nothing was sent. Give --spec or {accept} to ask the server whether it takes this client"
            )
        cpu = get_backend(spec.engine).get_cpu_level(self.options.device)
        n = 0 if self.m >= EVALUATOR_NUMBER else len(self.images or ())
        address = "" if self.peers is None or spec.route == "centralized" else self.peers.address
        self.digest = self.digests.find(terms.salt, self.images, self.test_images)
        return Accept(
            terms.spec_hash, spec.engine, cpu, n, check=self.options.check, address=address, data_digest=self.digest
        )

    def _start_run(self, spec: Spec, terms: Terms) -> None:
        """Check the terms, convert the data and build the visitor."""
        self._check_terms(spec, terms)
        self.terms = terms
        if self.m == FED_SERVER_NUMBER:
            assert self.options.keys is not None  # get_client_number checks it
            self.visitor = import_backend("fed_server").FedServer(spec, terms, self.options.keys)  # with torch
            return
        seals = self._build_sealer(spec, terms)
        self._check_evaluator(spec, terms)
        plan = terms.plan if self._has_agreed_to_all(terms) else ""
        sizes = get_model_sizes(terms)
        # Ask before the data are compared with the terms: a server that nobody has agreed to must not learn from the
        # end of the connection whether they fit. If somebody has, compare them first: the user's own function need not
        # build a model for images of any size.
        raw = self.raw or self._read_data()
        n = len(raw if isinstance(raw, Table) else raw.x)
        if self._has_agreed():
            self.images = self._convert(raw, spec, terms)
        shape = derive_client_shape(spec, *sizes, plan)
        agreed, allowed = self.options.agreed, derive_allowed_visits(spec, self.m, n)
        check_client_half(spec, shape, None if agreed is None else agreed.spec)
        self._ask_for_approval(spec, terms, shape, allowed, n)
        if self.images is None:
            self.images = self._convert(raw, spec, terms)
        self.raw = None
        context = ClientContext(self.m, spec, terms, self.images, plan, self.options.device)
        used = UsedVisits(allowed, self._get_usage_file(spec), self.options.repeats)
        self.visitor = VisitRunner(context, used, seals, self._build_evaluator(context), self.peers, self.usage)
        self.session.bounds = Bounds(
            batch=self.options.limits.batch if spec.optimiser.draw == "full" else max(spec.optimiser.batch, SLICE),
            h=shape.h,
            out=None if ":" in spec.model.name else sizes[1],
            dtype=spec.model.dtype,
            norms=shape.norms,
        )
        if self.peers is not None:
            self.peers.expect(compute_half_size(spec, shape))

    def _check_terms(self, spec: Spec, terms: Terms) -> None:
        """Raise InputError if the operator of this client has agreed to other terms."""
        options = self.options
        if options.agreed is not None:
            check_agreed(options.agreed, spec, terms)
        if options.accept_spec and options.accept_spec.lower() != terms.spec_hash:
            hint = "Nothing was sent. Ask the operator of the server; splitrelay join --check shows what it offers."
            what = "the server's terms are not the accepted ones"
            raise InputError(what, value=terms.spec_hash, limit=options.accept_spec, hint=hint)
        if options.device != "cpu" and spec.engine == "fast":
            hint = "Leave --device out, or have the server started with engine=reference."
            raise InputError("the fast engine computes on the CPU only", value=options.device, limit="cpu", hint=hint)
        for file in options.code:
            if str(file.resolve().parent) not in sys.path:
                sys.path.insert(0, str(file.resolve().parent))
        code = list_code(spec)
        # Layers that come with accepted terms need no code, except for x^0, which sealed runs draw at the clients.
        has_layers = bool(options.accept_spec and terms.plan) and spec.engine == "fast" and code == [spec.model.name]
        is_sealed = terms.sealed or spec.route == "peer-to-peer"
        if code and (is_sealed or not has_layers):
            with PARSING:
                if not options.agreed:
                    check_named_files(code, options.code)
                check_code(spec, terms)
        if options.sealed and not terms.sealed:
            raise InputError("the server of this run reads the clients' half", hint="Leave --sealed out, or stay.")

    def _has_agreed_to_all(self, terms: Terms) -> bool:
        """Whether the operator has agreed to the complete terms, not only to the spec."""
        agreed = self.options.agreed
        return bool(self.options.accept_spec) or (agreed is not None and agreed.terms is not None)

    def _has_agreed(self) -> bool:
        """Whether the operator has agreed to the spec before the server was asked for it."""
        return bool(self.options.accept_spec) or self.options.agreed is not None

    def _ask_for_approval(self, spec: Spec, terms: Terms, shape: Shape, allowed: AllowedVisits, n: int) -> None:
        """Ask the operator for approval, unless there was an agreement. A check only shows what would be sent."""
        self.disclosure = compute_disclosure(spec, shape, allowed, n, get_columns(terms))
        if not (self._has_agreed() or self.options.check):
            self.options.approval.obtain(spec, terms, self.disclosure)

    def _get_usage_file(self, spec: Spec) -> Path | None:
        """Return the file in which this client counts its visits of a spec, over restarts and over other terms.

        The server chooses the terms beside the spec, and the engine where the client leaves it open. Neither may give
        it another allowance.
        """
        folder, name = self.options.state or self.options.keys, spec.model_copy(update={"engine": "auto"}).identity
        return None if folder is None else folder / f"usage-{self.m}-{name[:16]}.json"

    def _check_evaluator(self, spec: Spec, terms: Terms) -> None:
        """Raise InputError if this client is the evaluator and has no test set, or cannot write the model."""
        judges = self.m == EVALUATOR_NUMBER or (self.m == spec.evaluator and not terms.judged)
        if not terms.sealed or not judges:
            return
        if self.options.test is None:
            hint = "Give --test; or have the server started with --judge, for an evaluator of its own."
            raise InputError(f"{get_client_name(self.m)} is this run's evaluator and brings no test set", hint=hint)
        check_writable(self.options.keep)

    def _build_sealer(self, spec: Spec, terms: Terms) -> Sealer | None:
        """Return the sealer, if the route is peer to peer or a fed server averages."""
        chain = spec.route == "peer-to-peer"
        if not chain and not terms.sealed:
            return None
        if self.options.keys is None:
            raise InputError("the clients' half is sealed in this run", hint="Join with --keys.")
        return Sealer(self.options.keys, spec.identity, self.m, chain=chain, clients=spec.partition.M)

    def _read_data(self) -> Raw | Table:
        """Read the data of the client. An evaluator that is not a client has only a test set."""
        agreed = self.options.agreed.spec if self.options.agreed else None
        with PARSING:
            return read_source(self._get_source(), agreed, test=self.m == EVALUATOR_NUMBER)

    def _get_source(self) -> Path:
        source = self.options.test if self.m == EVALUATOR_NUMBER else self.options.data
        assert source is not None  # get_client_number checks it
        return source

    def _convert(self, raw: Raw | Table, spec: Spec, terms: Terms) -> Samples:
        if terms.samples:
            with PARSING:
                return convert_samples(self._get_source(), raw, spec, terms, test=self.m == EVALUATOR_NUMBER)
        if isinstance(raw, Table):
            raise InputError(f"{raw.of} is a table, but this run trains on images", limit="images of bytes")
        return convert_images(raw, terms)

    def _build_evaluator(self, context: ClientContext) -> Evaluator | None:
        if self.options.test is None or self.m not in (context.spec.evaluator, EVALUATOR_NUMBER):
            return None
        images: Samples
        if context.terms.samples:
            images = convert_samples(self.options.test, None, context.spec, context.terms, test=True)
        else:
            images = convert_images(read_raw(self.options.test, test=True), context.terms)
        self.test_images = images
        evaluator: Evaluator = import_backend("remote_evaluator").EvaluatorClient(
            context, images, self.options.keep
        )  # with torch
        return evaluator


def _load_identity(options: ClientOptions) -> Identity | None:
    return load_identity_with_role(options.keys, options.keys is None, (CLIENT, EVALUATOR, certificates.FED))


def join_all(
    all_options: Sequence[ClientOptions], say: Callable[[int], Say], warn: Callable[[int], Say], stop: Event
) -> Iterator[str]:
    """Run each client in its own thread with its own connection, and yield the result of each as it ends."""
    numbers = [get_client_number(options, _load_identity(options)) for options in all_options]
    programs = [ClientProgram(options, say(m), stop, warn(m)) for m, options in zip(numbers, all_options, strict=True)]
    try:
        for program in programs:
            program.prepare()
    except BaseException:
        for program in programs:
            program.leave()
        raise
    if len(programs) == 1:
        yield programs[0].run()
    else:
        yield from _run_together(programs, stop)


def _run_together(programs: Sequence[ClientProgram], stop: Event) -> Iterator[str]:
    """Run several clients. A client that fails is reported at once; the first error is raised when all have ended."""
    failures = []
    with ThreadPoolExecutor(len(programs)) as threads:
        running = {threads.submit(program.run): program for program in programs}
        for ended in as_completed(running):
            try:
                yield ended.result()
            except SplitrelayError as error:
                running[ended].warn(str(error))
                failures.append(error)
            except BaseException:
                stop.set()
                raise
    if failures:
        raise failures[0]


__all__ = ["ClientOptions", "ClientProgram", "get_client_name", "join_all"]
